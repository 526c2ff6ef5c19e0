"""The matrix itself: whether its data hold together."""

from collections import Counter
from pathlib import Path

import pytest

from grpo.config import layout, load_config
from grpo.matrix.judge.bands import band_of, provisional
from grpo.matrix.judge.sanity import REQUIRED
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import hours_of, overrides_of, resolve_case
from grpo.matrix.schema.types import seconds_of
from grpo.matrix.show.listing import case_lines
from grpo.telemetry.memory import memory_metrics
from grpo.telemetry.reader import read_run
from tests.support.small_run import run_small

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
CASES = pytest.mark.parametrize("case", MATRIX.cases.values(), ids=list(MATRIX.cases))
# The commands of the users whose runs the cluster cases repeat.
DTENSOR_70B = (
    "policy.model_name=meta-llama/Llama-3.1-70B policy.tokenizer.name=meta-llama/Llama-3.1-70B-Instruct "
    "policy.generation.vllm_cfg.tensor_parallel_size=4 policy.max_total_sequence_length=4096 cluster.num_nodes=8 "
    "policy.dtensor_cfg.enabled=True policy.dtensor_cfg.tensor_parallel_size=8 "
    "policy.dtensor_cfg.sequence_parallel=True policy.dtensor_cfg.activation_checkpointing=False "
    "loss_fn.use_importance_sampling_correction=True policy.sequence_packing.enabled=False "
    "policy.dynamic_batching.enabled=True"
)
MEGATRON_70B = (
    "policy.model_name=meta-llama/Llama-3.1-70B policy.tokenizer.name=meta-llama/Llama-3.3-70B-Instruct "
    "policy.sequence_packing.enabled=True loss_fn.use_importance_sampling_correction=True"
)


def test_the_expanded_list(snapshot):
    assert "\n".join(case_lines(MATRIX)) == snapshot


@CASES
def test_every_case_resolves_and_its_degrees_fill_its_gpus(case):
    config = resolve_case(case).config
    degrees = case.parallel
    ranks = layout(config)
    assert degrees.tensor * degrees.pipeline * degrees.context * degrees.data == ranks.training_gpus
    separate = case.gpus and not config.policy.generation.colocated.enabled  # on CPUs an engine takes no ranks
    own = ranks.generation_gpus if separate else 0
    assert ranks.training_gpus + own == (case.gpus or config.cluster.cpu_ranks)
    assert ranks.generation_gpus % degrees.engine_tensor == 0
    assert (config.cluster.num_nodes, config.cluster.gpus_per_node) == (case.nodes, case.gpus_per_node)


@CASES
def test_every_case_fits_its_partitions(case):
    for name in case.partitions:
        partition = MATRIX.partition(name)
        assert case.gpus_per_node in (0, partition.gpus_per_node) or case.gpus_per_node < partition.gpus_per_node
        if partition.slurm.maximum_time is not None:
            assert seconds_of(case.time_limit) <= seconds_of(partition.slurm.maximum_time)


@CASES
def test_references_and_cases_name_each_other(case):
    needed = {(name, case.id) for name in case.partitions} if case.checks.against_reference else set()
    assert {key for key in MATRIX.references if key[1] == case.id} == needed
    for key in needed:
        reference = MATRIX.references[key]
        if reference.source.kind == "measured":  # a published row is held against the columns that it has
            assert set(case.checks.against_reference) <= set(reference.values)
        elif reference.source.kind == "published":
            assert {"timing/total", "timing/refit"} <= set(case.checks.against_reference) & set(reference.values)


@CASES
def test_enough_steps_are_judged(case):
    least = case.min_steps or 20
    assert case.steps - case.warmup_steps >= least


@pytest.mark.parametrize("key", MATRIX.references, ids="-".join)
def test_every_reference_can_gate_unless_it_says_otherwise(key):
    reference = MATRIX.references[key]
    if reference.source.kind == "none" or provisional(reference):
        return
    gating = [metric for metric in reference.values if band_of(metric, reference).gates]
    assert "timing/total" in gating
    if reference.source.kind == "measured":
        for metric in gating:
            assert band_of(metric, reference).upper <= 1.1 * reference.values[metric].value + 1e-9


def test_every_metric_of_a_check_is_one_that_the_trainer_emits(tmp_path, monkeypatch):
    # A reference policy and a loss that needs both log-prob passes: everything that depends on the recipe is there.
    run_small(
        tmp_path / "run",
        "loss_fn.reference_policy_kl_penalty=0.01",
        "loss_fn.force_on_policy_ratio=false",
        "cluster.peak_tflops=1.0",
    )
    emitted = set(read_run(tmp_path / "run").metric_names)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 0)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda: 0)
    emitted |= set(memory_metrics())  # with those of a GPU
    emitted |= {
        f"timing/refit/{part}" for part in ("export", "transfer", "load")
    }  # of workers with processes of their own
    assert set(REQUIRED) <= emitted
    for case in MATRIX.cases.values():
        checks = case.checks
        named = {*checks.against_reference, *checks.bounds, *checks.present}
        named |= {bound.share_of for bound in checks.bounds.values()} - {None}
        assert named <= emitted, (case.id, named - emitted)


def test_a_cadence_keeps_within_its_budget():
    gpu, cpu = Counter(), Counter()
    for case in MATRIX.all.values():
        gpu_hours, cpu_hours = hours_of(case)
        gpu[case.cadence] += gpu_hours
        cpu[case.cadence] += cpu_hours
    for cadence in ("pr", "nightly", "weekly", "release"):
        assert gpu[cadence] <= getattr(MATRIX.budgets.gpu_hours, cadence), cadence
        assert cpu[cadence] <= getattr(MATRIX.budgets.cpu_hours, cadence), cadence


def test_every_case_with_gpus_has_a_budget_of_its_own():
    budgets = MATRIX.budgets.case_gpu_hours
    assert set(budgets) == {case.id for case in MATRIX.cases.values() if case.gpus}
    for case_id, most in budgets.items():
        case = MATRIX.case(case_id)
        assert seconds_of(case.time_limit) / 3600 * case.gpus <= most, case_id


@pytest.mark.parametrize(
    ("case_id", "recipe", "command"),
    [
        ("70b-dtensor", "examples/configs/grpo_math_8B.yaml", DTENSOR_70B),
        ("70b-megatron", "examples/configs/grpo_math_70B_megatron.yaml", MEGATRON_70B),
    ],
)
def test_the_70b_cases_train_what_the_users_commands_do(case_id, recipe, command):
    case = MATRIX.case(case_id)
    own = ["grpo.max_num_steps=32", "checkpointing.enabled=false", "grpo.val_period=0"]
    own += [
        each for each in case.overrides if "sleep_level" in each or "offload_" in each
    ]  # so that it fits: the same is computed
    users = load_config(recipe, [*command.split(), *own]).config.model_dump()
    ours = resolve_case(case).config.model_dump()
    for values in (users, ours):  # where files go
        values.pop("logger")
        values["checkpointing"].pop("checkpoint_dir")
    assert ours == users


@pytest.mark.parametrize("case_id", ["8b-dtensor", "8b-megatron", "70b-dtensor", "70b-megatron"])
def test_the_settings_of_the_reported_runs(case_id):
    config = resolve_case(MATRIX.case(case_id)).config
    policy, generation = config.policy, config.policy.generation
    assert (config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt) == (64, 32)
    assert (policy.train_global_batch_size, policy.train_micro_batch_size) == (512, 1)
    assert policy.logprob_batch_size == (4 if "megatron" in case_id else 2)
    assert policy.max_total_sequence_length == 4096
    assert policy.optimizer.kwargs.lr == 3e-7
    assert generation.vllm_cfg.gpu_memory_utilization == 0.6
    if case_id.startswith("8b"):
        assert generation.vllm_cfg.tensor_parallel_size == 1
        assert policy.model_name == "meta-llama/Llama-3.1-8B-Instruct"


def test_overrides_end_with_what_the_case_itself_says():
    assert overrides_of(MATRIX.case("70b-dtensor"))[-3:] == [
        "grpo.max_num_steps=32", "cluster.num_nodes=8", "cluster.gpus_per_node=8",
    ]  # fmt: skip
