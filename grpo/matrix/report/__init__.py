"""The whole matrix drawn: what passes where, how figures have moved, what never ran."""

from grpo.matrix.report.write import write_matrix_report

__all__ = ["write_matrix_report"]
