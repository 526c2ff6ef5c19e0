"""How workers are run: one object in a process of its own."""
