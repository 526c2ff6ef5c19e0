import pytest

from grpo.config import load_config
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import load_partition
from grpo.planning.plan import Assumptions, make_plan


@pytest.fixture
def partition():
    return load_partition("h100-80g")


@pytest.fixture
def planned(partition):
    """Plan a recipe with overrides; `on` is another partition."""

    def plan(recipe, *overrides, on=partition, **assumptions):
        config = load_config(recipe, overrides).config
        return make_plan(load_model_shapes(config.policy.model_name), config, on, Assumptions(**assumptions))

    return plan
