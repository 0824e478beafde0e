"""What compiled drafts are made of. Modules are linked into bundles by source and import nothing else of draftc."""
