"""Where Megatron-Core 0.16 and 0.19 differ, and what they are told alike.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

from grpo.errors import ConfigError

SUPPORTED = ("0.16", "0.20")  # from, up to and without


def check_version() -> None:
    """Raise ConfigError if Megatron-Core is missing or of a version that was not tried."""
    from importlib.metadata import PackageNotFoundError

    try:
        found = Version(version("megatron-core"))
    except PackageNotFoundError as error:
        raise ConfigError(
            "policy.megatron_cfg.enabled is true but megatron-core is not installed: pip install 'grpo-matrix[megatron]'"
        ) from error
    if not Version(SUPPORTED[0]) <= found < Version(SUPPORTED[1]):
        raise ConfigError(f"megatron-core {found} is installed; versions {SUPPORTED[0]} to below {SUPPORTED[1]} are known to work")
