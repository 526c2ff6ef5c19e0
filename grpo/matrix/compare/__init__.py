"""Two runs, or old and new in turn: how much slower, and where (reports of users, rule 11)."""
