"""The gate, and the pipelines of CI systems that are written from the matrix."""
