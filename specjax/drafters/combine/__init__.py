"""Several drafters as one."""
