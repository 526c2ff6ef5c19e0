"""References after a change of stack or image (rule 8)."""
