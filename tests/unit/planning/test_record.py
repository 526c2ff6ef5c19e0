import json

from grpo.planning.record import plan_record
from grpo.planning.repair import Change


def structure(value, key=""):
    """One line a key: its type, lists by their first entry."""
    if isinstance(value, dict):
        return [line for name, below in value.items() for line in structure(below, f"{key}.{name}" if key else name)]
    if isinstance(value, list) and value:
        return structure(value[0], f"{key}[]")
    return [f"{key}: {type(value).__name__}"]


def test_the_keys_of_the_record(planned, snapshot):
    plan = planned("grpo_math_8b", completion_tokens=777)
    record = json.loads(json.dumps(plan_record(plan, [Change(("a=b",), plan)])))
    assert "\n".join(structure(record)) == snapshot


def test_values_are_the_plans(planned):
    plan = planned("grpo_math_70b_megatron", completion_tokens=398)
    record = plan_record(plan)
    assert record["schema_version"] == 1
    assert record["model"]["parameters"] == 70_553_706_496
    assert record["layout"]["gpus"] == 64
    assert (record["layout"]["tensor"], record["layout"]["pipeline"], record["layout"]["data"]) == (4, 4, 4)
    assert record["fits"] is True
    assert record["step_seconds"] == sum(each["seconds"] for each in record["times"])
    assert record["workload"]["completion_tokens_mean"] == plan.setting.workload.lengths.mean
    assert record["memory"]["phases"][3]["total_bytes"] == plan.memory[3].total
    assert record["partition"]["figures"]["network"]["source"].startswith("datasheet")
