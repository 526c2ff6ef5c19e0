"""No property has a deadline: how long an example takes says how busy the machine is."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
