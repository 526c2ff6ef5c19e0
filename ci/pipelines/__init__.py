"""One module a CI system: the same jobs, each a task of nox with a time limit."""
