"""Errors of sending weights. A run does not go on after one: nobody knows what the engine holds."""

from grpo.errors import GrpoError


class RefitError(GrpoError):
    """Policy and engine do not agree on the weights, or what arrived is not what was sent."""

    exit_code = 1


class PeerLostError(RefitError):
    """The other side has gone, has given up, or did nothing for too long: the cause is to be found there."""
