import json
import sys

import pytest

from grpo import cli


@pytest.fixture
def plan(monkeypatch, capsys):
    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["grpo", "plan", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        captured = capsys.readouterr()
        return leaving.value.code, captured.out, captured.err

    return invoke


def test_a_plan_as_json(plan):
    code, out, _ = plan(
        "grpo_math_8b", "cluster.num_nodes=2", "--completion-tokens", 700, "--resident", "none", "--json"
    )
    record = json.loads(out)
    assert code == 0
    assert record["layout"]["gpus"] == 16
    assert record["assumptions"]["completion_tokens"] == 700
    assert record["partition"]["name"] == "h100-80g"


def test_options_reach_the_plan(plan):
    code, out, _ = plan(
        "grpo_math_8b", "--partition", "h200-141g", "--prompt-tokens", 99, "--length-shape", 2, "--resident",
        "optimizer", "--json",
    )  # fmt: skip
    record = json.loads(out)
    assert code == 0
    assert record["partition"]["name"] == "h200-141g"
    assert record["assumptions"] == {
        "prompt_tokens": 99, "completion_tokens": None, "length_shape": 2.0, "resident": "optimizer",
    }  # fmt: skip


def test_what_does_not_fit_is_printed_and_refused(plan):
    code, out, err = plan("grpo_math_8b", "policy.max_total_sequence_length=16384", "--resident", "none")
    assert code == 2
    assert "Memory of the fullest GPU" in out
    assert err.startswith("error: it does not fit: policy_training needs ")
    assert "smallest change that fits: policy.dtensor_cfg.activation_checkpointing=true" in err


def test_a_refusal_as_json_lists_the_changes(plan):
    code, out, _ = plan("grpo_math_8b", "policy.max_total_sequence_length=16384", "--resident", "none", "--json")
    record = json.loads(out)
    assert (code, record["fits"]) == (2, False)
    assert record["changes"][0]["overrides"] == ["policy.dtensor_cfg.activation_checkpointing=true"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny", "policy.generation.backend=vllm"), "cluster.gpus_per_node = 0"),
        (("grpo_math_8b", "--partition", "a100"), "--partition a100"),
        (("grpo_math_8b", "policy.model_name=some/model"), "policy.model_name=some/model"),
        (("grpo_math_8b", "--completion-tokens", "9999"), "--completion-tokens 9999"),
        (("grpo_math_8b", "policy.generation.vllm_cfg.tensor_parallel_size=4", "policy.model_name=tiny-llama",
          "policy.dtensor_cfg.tensor_parallel_size=4"), "key and value heads, 2"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error(plan, arguments, message, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    code, _, err = plan(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
