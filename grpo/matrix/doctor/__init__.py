"""Whether this machine is set up as a run needs it, and what to do where it is not."""
