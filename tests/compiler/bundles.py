"""Bundles of small layouts, and scripts in processes of their own, for tests."""

import os
import subprocess
import sys
from pathlib import Path

from draftc.compiler import api
from draftc.compiler.program import Options
from tests.compiler.support import layout

STACK = ("context", "near", "latent", "recurrent", "scan")


def compiled(*names: str, opt: int = 1, **changes: object) -> api.CompiledDraft:
    """A tiny draft of the named attentions; without names, one of every kind."""
    return api.compile(layout(*(names or STACK), **changes), Options(opt=opt, packages={"torch": "2.13.0"}))


def run_alone(script: str, scratch: Path, *arguments: object, **environment: str) -> str:
    """Run a script in a process that has torch and transformers and no draftc; return what it prints."""
    guard = "import sys\nassert not any(name.partition('.')[0] == 'draftc' for name in sys.modules)\n"
    barred = "sys.modules['draftc'] = None\n"  # an import of it would raise
    base = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    given = base | {"HF_MODULES_CACHE": str(scratch / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-W", "error::UserWarning", "-c", guard + barred + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, env=given | environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
