"""A case as a Slurm job: the script, its submission, the wait, and the verdict."""
