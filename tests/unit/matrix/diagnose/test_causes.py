from pathlib import Path

import pytest

from grpo.config import load_config
from grpo.config.schema import Config
from grpo.config.shape import at
from grpo.matrix.diagnose.causes import applying, holds, known_causes, setting
from grpo.matrix.judge.sanity import REQUIRED
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import resolve_case
from grpo.telemetry.timers import PHASES

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")


def test_every_condition_is_of_a_key_or_a_metric_that_exists():
    for cause in known_causes():
        assert cause.phase in (*PHASES, "other")
        for key in cause.settings:
            assert at(Config, key) is not None, key
        for name in cause.metrics:
            assert name in REQUIRED


def test_every_condition_can_hold():
    default = load_config("tiny", []).config.model_dump(mode="json")
    for cause in known_causes():
        for key, condition in cause.settings.items():
            value = setting(default, key)
            operand = next(iter(condition.values())) if isinstance(condition, dict) else condition
            numbers = (int, float)
            assert (
                value is None
                or type(value) is type(operand)
                or (isinstance(value, numbers) and isinstance(operand, numbers))
            ), key


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (True, True, True), (True, False, False), (True, 1, False), (True, None, False), (None, None, True),
        ("a", "a", True), (1, 1, True), (1, True, False), ({"above": 1}, 2, True), ({"above": 1}, 1, False),
        ({"below": 0.5}, 0.4, True), ({"below": 0.5}, None, False), ({"above": 0}, True, False),
        ({"above": 1}, "2", False), ({"not": "vllm"}, "hf", True), ({"not": "vllm"}, "vllm", False),
    ],
)  # fmt: skip
def test_conditions(condition, value, expected):
    assert holds(condition, value) is expected


def test_only_what_the_configuration_allows_is_named():
    megatron = resolve_case(MATRIX.case("70b-megatron")).config.model_dump(mode="json")
    dtensor = resolve_case(MATRIX.case("70b-dtensor")).config.model_dump(mode="json")
    whys = [cause.why for cause in applying("policy_training", dtensor, {})]
    assert any("DTensor passes through Python" in why for why in whys)
    assert not any("activation checkpointing" in why for why in whys)
    assert not any("DTensor" in cause.why for cause in applying("policy_training", megatron, {}))
    assert any("pipeline stage" in cause.why for cause in applying("refit", megatron, {}))


def test_metrics_are_conditions_too():
    config = load_config("tiny", []).config.model_dump(mode="json")
    padded = applying("policy_training", config, {"train/padding_efficiency": 0.5})
    assert any("padding" in cause.why for cause in padded)
    for metrics in ({}, {"train/padding_efficiency": 0.95}):
        assert not any("are padding" in cause.why for cause in applying("policy_training", config, metrics))


def test_each_has_its_source():
    for cause in known_causes():
        assert min(map(len, (cause.why, cause.remedy, cause.source))) > 10
