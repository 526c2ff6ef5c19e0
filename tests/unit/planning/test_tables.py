from io import StringIO

from rich.console import Console

from grpo.planning.repair import Change
from grpo.planning.tables import print_plan, shortage_message


def printed(plan):
    console = Console(file=StringIO(), width=200)
    print_plan(plan, console)
    return console.file.getvalue()


def test_every_phase_and_resource_is_shown(planned):
    text = printed(planned("grpo_math_70b", completion_tokens=395))
    for wanted in (
        "meta-llama/Llama-3.1-70B, 70.6 B parameters, on 64 GPUs of h100-80g", "tensor 8 x pipeline 1 x data 8",
        "sequence parallel", "policy_training", "logprobs", "kv cache", "optimizer", "fsdp reduce-scatter", "network",
        "verification", "MFU of training", "with recompute",
    ):  # fmt: skip
        assert wanted in text
    assert " !" not in text


def test_a_phase_that_does_not_fit_is_marked(planned):
    plan = planned("grpo_math_8b", "cluster.gpus_per_node=1")
    (total,) = [line for line in printed(plan).splitlines() if line.strip().startswith("total") and "!" in line]
    assert total.count("!") == 1


def test_the_message_names_shortage_and_change(planned):
    plan = planned("grpo_math_8b", "cluster.gpus_per_node=1")
    change = Change(("cluster.gpus_per_node=4",), planned("grpo_math_8b", "cluster.gpus_per_node=4"))
    text = shortage_message(plan, [change, change])
    assert text.startswith("it does not fit: policy_training needs ")
    assert "smallest change that fits: cluster.gpus_per_node=4 (4 GPUs, " in text
    assert "\nalso fits: " in text
    assert shortage_message(plan, []).endswith("nor all that cost only time with up to 64 nodes")
