"""Rollouts made while training runs: the buffer, the thread that fills it, and the source that empties it."""
