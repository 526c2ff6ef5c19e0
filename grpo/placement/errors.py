"""What placement refuses: a fault of the program, so it keeps its traceback."""


class PlacementError(RuntimeError):
    """A move that the plan does not allow, or a resource that is not where it must be. Names phase or call, resource
    and both residences.
    """
