"""The versions of Megatron-Core that the backend was tried with. What it uses is alike in all of them.

Differences that were met: from 0.17 on Megatron calls the norms and attentions of a layer specification as builders,
and asks for parallel groups by name; the classes here take both. 0.19 says that GPTModel is deprecated.
"""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

from grpo.errors import ConfigError

SUPPORTED = ("0.16", "0.20")  # from, up to and without


def check_version() -> None:
    """Raise ConfigError if Megatron-Core is of a version that was not tried."""
    found = Version(version("megatron-core"))
    if not Version(SUPPORTED[0]) <= found < Version(SUPPORTED[1]):
        raise ConfigError(
            f"policy.megatron_cfg.enabled is true, but megatron-core {found} is installed; versions from "
            f"{SUPPORTED[0]} to below {SUPPORTED[1]} are known to work"
        )
