"""Rewards: verifiers, and the pools of processes that run them. Kept light, for the processes import it too."""
