"""The documentation site: `python docs/build_site.py` (or `make docs-site`) assembles its pages and builds it."""
