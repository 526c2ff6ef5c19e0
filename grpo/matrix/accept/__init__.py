"""From judged runs to a reference (rule 10)."""
