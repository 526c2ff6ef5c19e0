"""The whole programme on a CPU at a tiny shape: its parts, its files, and what it does when a part fails."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.gpu.bare_ranks import BareFSDP, BareMegatronRanks
from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.work import batch_of, packs_of
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks.gpu.bare_megatron import BareMegatron
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron.policy import MegatronPolicy

ROOT = Path(__file__).parents[3]


def run(out, *arguments):
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--size",
        "tiny",
        "--engine",
        "hf",
        "--out",
        str(out),
        *arguments,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return done, records


def test_parts_are_measured_recorded_and_shown(tmp_path):
    done, records = run(tmp_path, "--parts", "dtensor-8b,step")
    kinds = [(each["part"], each["kind"]) for each in records]
    assert done.returncode in {0, 1}, done.stdout + done.stderr  # 1: at this size goals are missed
    expected = ["memory", "training", "shares", "took"]
    assert kinds == [
        ("machine", "machine"),
        *(("dtensor-8b", each) for each in expected),
        ("step", "step"),
        ("step", "took"),
    ]
    (step,) = [each for each in records if each["kind"] == "step"]
    assert sum(step["seconds"][name] for name in step["seconds"] if name != "total") == pytest.approx(
        step["seconds"]["total"], rel=0.5
    )
    assert "Where ours spends an update" in (tmp_path / "gpu.md").read_text()


def test_a_part_that_takes_too_long_is_ended_and_said_to_have_failed(tmp_path):
    done, records = run(tmp_path, "--parts", "limits", "--seconds", "0.5")
    assert done.returncode == 2
    (failure,) = [each for each in records if each["kind"] == "failure"]
    assert failure["part"] == "limits"
    assert "it was ended after" in failure["traceback"]
    assert "**failed**" in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize("packs", [1, 3])
def test_the_bare_megatron_loop_does_what_the_worker_does(packs):
    shape = SHAPES_BY_NAME["tiny"]
    batch = batch_of([30, 9, 17, 41, 22], 320, seed=3)
    cap = 128 if packs == 1 else 48
    model = shape.build("cpu")
    source = dict(model.state_dict())
    ours = MegatronPolicy(
        ModelShape.of(model.config), source, worker_config(cap, precision="float32", backend="megatron", gpus=0)
    )
    weights = list(ours._trained.model.parameters())
    bare = BareMegatron(ModelShape.of(model.config), weights, torch.float32, torch.device("cpu"))
    laid = packs_of(batch, cap, "cpu")
    assert len(laid) == packs
    with torch.no_grad():
        logits = [(bare.states(pack) @ bare.output_weight.T).log_softmax(-1) for pack in laid]
    chosen = torch.cat([each.gather(1, pack.targets[:, None])[:, 0] for each, pack in zip(logits, laid, strict=True)])
    scored = ours.logprobs(batch)[batch.mask]
    torch.testing.assert_close(scored.sort().values, chosen.sort().values, rtol=1e-5, atol=1e-5)
    loss = bare.update(laid)
    result = ours.train(batch)
    # The worker adds the terms of all packs up in one sum, the loop pack by pack: float32 rounds differently.
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for mine, other in zip(ours._trained.model.parameters(), bare.model.parameters(), strict=True):
        torch.testing.assert_close(mine.main_grad, other.main_grad, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)


def over_one_rank(backend, shape):
    """A worker as the parts over several GPUs make it, here over a single rank."""
    model = shape.build("cpu")
    config = worker_config(48, precision="bfloat16", backend=backend, gpus=0)
    if backend == "megatron":
        return MegatronPolicy(ModelShape.of(model.config), dict(model.state_dict()), config)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    return DTensorPolicy(model, config, parallel=ParallelContext(mesh, sequence_parallel=False))


@pytest.mark.parametrize(("backend", "loop"), [("dtensor", BareFSDP), ("megatron", BareMegatronRanks)])
def test_the_bare_loops_over_ranks_do_what_the_workers_do(backend, loop):
    shape, batch = SHAPES_BY_NAME["tiny"], batch_of([30, 9, 17, 41, 22], 320, seed=3)
    ours, theirs = over_one_rank(backend, shape), over_one_rank(backend, shape)
    bare = loop(theirs, torch.device("cpu"))
    packs = bare.packs(batch)
    assert len(packs) == 3
    for _ in range(2):
        bare.update(packs, int(batch.mask.sum()))
        ours.train(batch)
    mine, other = (dict(policy.export_weights()) for policy in (ours, theirs))
    assert mine.keys() == other.keys()
    for name, each in mine.items():
        torch.testing.assert_close(each, other[name], rtol=1e-6, atol=1e-8, msg=name)
    before = {name: each.bfloat16() for name, each in shape.build("cpu").named_parameters()}
    assert any(not torch.equal(each, before[name]) for name, each in mine.items())
