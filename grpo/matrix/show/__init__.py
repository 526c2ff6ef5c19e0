"""The matrix and its verdicts for people and for machines."""
