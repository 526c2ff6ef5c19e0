"""`grpo plan`: from a recipe to a printed plan."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from grpo.config import ResolvedConfig, load_config
from grpo.errors import ConfigError
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import load_partition
from grpo.planning.plan import Assumptions, Plan, make_plan
from grpo.planning.record import plan_record
from grpo.planning.repair import changes_that_fit
from grpo.planning.tables import print_plan, shortage_message


def run_plan(
    resolved: ResolvedConfig,
    recipe: str,
    overrides: Sequence[str],
    *,
    partition_name: str,
    assumptions: Assumptions,
    as_json: bool,
    console: Console,
) -> None:
    """Print the plan of a configuration.

    Raises:
        ConfigError: it does not fit, after the plan was printed; or it cannot be planned.
        ModelError: the model's dimensions are not on this machine.
    """
    policy = resolved.config.policy
    partition = load_partition(partition_name)
    model = load_model_shapes(policy.model_name, policy.model_revision)

    def attempt(further: Sequence[str]) -> Plan:
        config = load_config(recipe, [*overrides, *further]).config
        return make_plan(model, config, partition, assumptions)

    plan = make_plan(model, resolved.config, partition, assumptions)
    changes = [] if plan.fits else changes_that_fit(plan, attempt)
    if as_json:
        console.print_json(json.dumps(plan_record(plan, changes)))
    else:
        print_plan(plan, console)
    if not plan.fits:
        raise ConfigError(shortage_message(plan, changes))
