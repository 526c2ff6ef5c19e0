"""What stays on the GPUs of a colocated run while the engine generates."""

from enum import StrEnum


class Resident(StrEnum):
    """Of the policy. What does not stay is offloaded to the host and brought back in the phase that needs it."""

    NONE = "none"
    OPTIMIZER = "optimizer"  # moments, and masters where they are apart from the parameters
    ALL = "all"  # parameters, optimizer and reference; the engine stays as well
