"""How much memory a process holds."""

from __future__ import annotations

import psutil
import torch


def memory_metrics() -> dict[str, float]:
    """Resident memory of this process, and what torch holds of the GPU where there is one; GiB."""
    metrics = {"memory/rss_gib": psutil.Process().memory_info().rss / 2**30}
    if torch.cuda.is_available():
        metrics["memory/allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
        metrics["memory/reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return metrics
