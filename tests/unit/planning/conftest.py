from functools import cache

import pytest

from grpo.config import load_config
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import load_partition
from grpo.planning.plan import Assumptions, make_plan
from grpo.planning.resident import Resident

model = cache(load_model_shapes)


@pytest.fixture
def partition():
    return load_partition("h100-80g")


@pytest.fixture
def planned():
    """Plan a recipe with overrides, everything offloaded. Plans do not change, so that equal ones are made once."""

    def plan(recipe, *overrides, **assumptions):
        return _plan(recipe, overrides, Assumptions(**{"resident": Resident.NONE, **assumptions}))

    return plan


@cache
def _plan(recipe, overrides, assumptions):
    config = load_config(recipe, overrides).config
    return make_plan(model(config.policy.model_name), config, load_partition("h100-80g"), assumptions)
