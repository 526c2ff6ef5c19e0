"""The guide's table is the code's."""

from pathlib import Path

from grpo.config import load_config
from grpo.placement.plan import plan_of
from grpo.placement.resources import Resource

GUIDE = Path(__file__).parents[3] / "docs" / "placement.md"
COLOCATED = "policy.generation.colocated"
EVERYTHING = [
    "loss_fn.reference_policy_kl_penalty=0.1", "policy.offload_reference=true",
    "policy.offload_optimizer_for_logprob=true", f"{COLOCATED}.offload_optimizer=true",
    f"{COLOCATED}.offload_parameters=true", f"{COLOCATED}.sleep_level=2",
]  # fmt: skip


def table(plan):
    lines = [["phase", *(each.replace("_", " ") for each in Resource)], ["---"] * (1 + len(Resource))]
    lines += [[phase, *(str(row.get(each, "-")) for each in Resource)] for phase, row in plan.rows.items()]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("--- |", "---|") for line in lines)


def test_the_guide_shows_the_table_with_every_key_set():
    assert table(plan_of(load_config("tiny", EVERYTHING).config)) in GUIDE.read_text()


def test_the_guide_names_every_key():
    text = GUIDE.read_text()
    assert [each for each in EVERYTHING[1:] if f"`{each.split('=')[0]}`" not in text] == []
