"""What a node can do right now (rule 6): a short measurement, stored with each run."""
