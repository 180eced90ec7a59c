"""One module a competitor. Each runs in a process and an environment of its own."""
