"""Renderers of findings: `text`, `concise`, `json`, `sarif`, `github`; each a module with `render(reports) -> str`."""
