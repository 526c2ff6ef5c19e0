"""Every key of the schema is read by what a run is made of."""

import contextlib
import re
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import pytest

from grpo.checkpoint.signals import StopRequest
from grpo.config import layout, load_config
from grpo.data.sources import read_examples
from grpo.errors import ConfigError
from grpo.hub.plan import plan_fetch
from grpo.telemetry.loggers import build_loggers, close_all
from grpo.trainer.run import train
from grpo.trainer.supported import check_runnable
from grpo.workers.generation import engine_rank
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_arguments import engine_arguments
from tests.support.config_reads import record_reads
from tests.support.small_run import small

# Runs that between them take every branch that a key decides about.
RUNS = {
    "plain": [],
    "options of the objective": [
        "loss_fn.force_on_policy_ratio=false", "loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.ratio_clip_c=3",
        "loss_fn.use_importance_sampling_correction=true", "loss_fn.importance_sampling_correction_type=icepop",
        "loss_fn.aggregation=seq_mean_token_sum_norm",
    ],
    "options of the rewards": [
        "grpo.reward_shaping.enabled=true", "grpo.reward_shaping.overlong_buffer_length=1",
        "grpo.reward_scaling.enabled=true", "grpo.use_dynamic_sampling=true",
        "grpo.stop_at_reward=0.9", "grpo.stop_window=3",
        "grpo.dynamic_sampling_max_gen_batches=400", "logger.num_val_samples_to_print=2",
    ],
    "kl in the reward": [
        "loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.reference_policy_kl_in=reward",
        "loss_fn.force_on_policy_ratio=false",
    ],
    "lengths": ["policy.generation.replay_lengths.mean=1.5"],
    "packing": ["policy.sequence_packing.enabled=true"],
    "dynamic batching": ["policy.dynamic_batching.enabled=true"],
    "vllm": ["policy.generation.backend=vllm"],
    "ray": ["cluster.launcher=ray", "cluster.cpu_engine_ranks=2"],
    "saves in the background": ["checkpointing.async_save=true"],
    "async": [
        "policy.generation.backend=vllm", "cluster.launcher=ray", "policy.generation.colocated.enabled=false",
        "grpo.async_grpo.enabled=true", "grpo.async_grpo.in_flight_weight_updates=true",
        "loss_fn.use_importance_sampling_correction=true", "loss_fn.force_on_policy_ratio=false",
    ],
    "megatron": ["policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true"],
    "verifier in a process": ["env.exact_match.verifier=tests.support.scoring:equal"],
}  # fmt: skip

# Their whole effect is on the keys that are derived from them.
READ_WHILE_RESOLVING = {"data.default.env_name": ["data.train.env_name", "data.validation.env_name"]}

# Read before a run starts, by what lays out, fetches or refuses it.
LAYOUTS = ["grpo_math_8b", "grpo_math_8b_megatron", "grpo_math_70b", "grpo_math_70b_megatron"]


def read_by_a_run(directory, overrides):
    resolved = small(directory, "grpo.max_num_steps=3", "grpo.val_period=2", *overrides)
    with record_reads(resolved.config) as reads:
        train(replace(resolved, config=reads.config), fresh=False, quiet=True, command=[], stop=StopRequest())
    return reads


def read_before_a_run(recipe, *overrides):
    with record_reads(load_config(recipe, list(overrides)).config) as reads:
        layout(reads.config)
        plan_fetch(reads.config)
        with contextlib.suppress(ConfigError):
            check_runnable(reads.config)
    return reads


def read_by_loggers(directory, monkeypatch):
    for name in ("wandb", "mlflow", "mlflow.entities", "sqlalchemy", "alembic"):
        monkeypatch.setitem(sys.modules, name, MagicMock(__spec__=ModuleSpec(name, None)))
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = load_config("tiny", ["logger.wandb_enabled=true", "logger.mlflow_enabled=true"]).config
    with record_reads(config) as reads:
        close_all(build_loggers(reads.config.logger, directory, name="n", run_config={}), failed=False)
    return reads


def read_by_datasets(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    kinds = {
        "file": [f"data.train.data_path={tmp_path}/data/train.jsonl"],
        "hub": [f"data.train.dataset_name={tmp_path}/data"],
        "reasoning_gym": ["data.train.task=spell_backward", "data.train.size=2"],
    }
    for kind, overrides in kinds.items():
        with record_reads(load_config("tiny", [f"data.train.kind={kind}", *overrides]).config) as reads:
            read_examples(reads.config.data.train, key="data.train")
        yield reads


def read_by_an_engine_on_a_gpu(tmp_path):
    with record_reads(load_config("grpo_math_8b").config) as reads:
        engine_arguments(reads.config, tmp_path)
    return reads


def read_by_an_engine_that_samples_on(tmp_path, monkeypatch):
    """In a run it is made in a process of its own."""
    engine = VllmGenerator.__new__(VllmGenerator)
    monkeypatch.setattr(engine_rank, "make_local_generator", lambda *_, **__: engine)
    with record_reads(load_config("tiny").config) as reads:
        engine_rank.stepped_engine(reads.config, tmp_path)
    return reads


def schema_key(key):
    """The key as the schema has it: both datasets are of one class, and so are all envs."""
    return re.sub(r"^env\.[^.]+\.", "env.NAME.", key.replace("data.validation.", "data.train."))


@pytest.mark.timeout(600)
def test_every_key_is_read(tmp_path, monkeypatch):
    recorded = [read_by_a_run(tmp_path / name, overrides) for name, overrides in RUNS.items()]
    recorded.append(read_by_a_run(tmp_path / "plain", ["grpo.max_num_steps=4"]))  # resumed
    recorded += [read_before_a_run(recipe) for recipe in LAYOUTS]
    recorded.append(read_before_a_run(
        "grpo_math_8b", "policy.generation.colocated.enabled=false", "cluster.num_nodes=2",
        "policy.generation.colocated.resources.num_nodes=1", "policy.generation.colocated.resources.gpus_per_node=8",
    ))  # fmt: skip
    recorded.append(read_by_loggers(tmp_path, monkeypatch))
    recorded += read_by_datasets(tmp_path)
    recorded.append(read_by_an_engine_on_a_gpu(tmp_path))
    recorded.append(read_by_an_engine_that_samples_on(tmp_path, monkeypatch))
    leaves = frozenset().union(*(map(schema_key, reads.leaves) for reads in recorded))
    read = frozenset().union(*(map(schema_key, reads.read) for reads in recorded))
    assert sorted(leaves - read) == sorted(READ_WHILE_RESOLVING)
    for key, derived in READ_WHILE_RESOLVING.items():
        other = load_config("tiny", [f"{key}=other", "env.other.verifier=exact_match"])
        assert [other.provenance[each] for each in derived] == [f"derived from {key}"] * len(derived)
