"""The command line: what is typed, what it runs, and what is shown."""
