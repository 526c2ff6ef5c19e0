"""The test matrix: cases, partitions and references as data, and the judge that decides from a run directory.

It knows the trainer by its configuration and its run directory alone.
"""
