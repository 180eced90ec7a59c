"""One module per file format: how it is recognised and how it becomes arrays."""
