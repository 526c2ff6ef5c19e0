"""Runs use no network: what they need is on the machine before they start."""

import os
import sys

_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def go_offline() -> None:
    """Keep this process and its children from the hub and from usage reports. Every command calls it but `grpo fetch`.

    The libraries read these settings when they are imported; one that is loaded already is told as well.
    """
    os.environ.update(_SETTINGS)
    for module, name in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], name, True)
