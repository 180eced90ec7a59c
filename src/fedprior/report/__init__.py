"""Reports of a run for people."""
