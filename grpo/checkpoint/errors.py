"""Kinds of refusal that decide whether an earlier checkpoint may be taken instead."""

from grpo.errors import CheckpointError


class DamagedCheckpoint(CheckpointError):  # noqa: N818  # reads as what it is, like FileNotFound
    """A file that is missing, truncated, altered or foreign. The checkpoint before this one may be taken."""


class OtherModelCheckpoint(CheckpointError):  # noqa: N818
    """A sound checkpoint of another model or configuration. Never a reason to take an earlier one."""


class NewerCheckpoint(CheckpointError):  # noqa: N818
    """A sound checkpoint of a newer format. Never a reason to take an earlier one."""
