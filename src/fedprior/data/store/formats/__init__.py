"""One module a file format: how it is recognised and how it becomes arrays."""
