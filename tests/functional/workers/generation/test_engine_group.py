"""Engines in processes of their own, several replicas or one of several ranks: the contract of every engine."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo.config.schema import Config
from grpo.config.schema.algorithm import AsyncGrpo
from grpo.errors import ModelError
from grpo.models.loading import load_model
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.engine_rank import EngineRank
from grpo.workers.generation.engine_start import start_engines
from grpo.workers.generation.factory import make_generator
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.groups.failures import RankError
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation, Room
from grpo.workers.protocol import Completion, GroupRequest
from tests.functional.workers.groups.conftest import gone
from tests.support.ailing_rank import DIES, HANGS, RAISES, AilingRank
from tests.support.generation import CONTEXT, make_config, reference_logprobs, weights_of, write_model
from tests.support.generator_contract import FLOAT32, PROMPTS, GeneratorContract, ids, plain
from tests.support.refits import refit_into

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("shared_ray"),
]


LIMIT = 60.0


def engine_config(folder: Path, backend: str, *, ranks: int, size: int = 1) -> Config:
    config = make_config(
        folder, backend=backend, generation={"stop_strings": ["A"], "vllm_cfg": {"tensor_parallel_size": size}}
    )
    cluster = {"launcher": "ray", "worker_timeout_s": 240.0, "cpu_engine_ranks": ranks}
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=cluster)})


class RefitContract(GeneratorContract):
    """New weights come with a refit from this process."""

    def update(self, engine, weights, version):
        refit_into(engine, weights, version)


class TestTwoReplicas(RefitContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[EngineGroup]:
        engines = make_generator(engine_config(folder, "hf", ranks=2), folder)
        assert isinstance(engines, EngineGroup)
        yield engines
        engines.shutdown()
        engines.shutdown()

    @pytest.mark.parametrize(("prompts", "completions"), [(PROMPTS, 3), (PROMPTS[:1], 5), (PROMPTS[:1], 1), ([], 2)])
    def test_what_is_sampled_is_what_one_engine_samples(self, engine, folder, prompts, completions):
        seeds = list(range(7, 7 + len(prompts)))
        alone = make_local_generator(engine_config(folder, "hf", ranks=1), folder)
        expected = alone.generate(prompts, completions, plain(9), seeds)
        assert ids(engine.generate(prompts, completions, plain(9), seeds)) == ids(expected)


class TestTwoRanksOfVllm(RefitContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[EngineGroup]:
        engines = make_generator(engine_config(folder, "vllm", ranks=2, size=2), folder)
        yield engines
        engines.shutdown()


@pytest.mark.nightly
def test_two_engines_of_two_ranks_on_one_machine_share_nothing(tmp_path):
    """vLLM's ranks on a CPU find each other in memory of a name, which must be each engine's own."""
    folders = [write_model(tmp_path / name, seed=seed) for seed, name in enumerate("ab", 1)]
    engines = make_generator(engine_config(folders[0], "vllm", ranks=4, size=2), folders[0])
    try:
        assert engines.workers.world_size == 4
        for version, folder in enumerate(folders, 1):
            refit_into(engines, weights_of(folder), version)
            model = load_model(folder, dtype=torch.float32)
            for prompt, group in zip(PROMPTS, engines.generate(PROMPTS, 2, plain(9), [1, 2, 3, 4]), strict=True):
                for completion in group:
                    expected = reference_logprobs(model, prompt, completion.token_ids)
                    actual = torch.tensor(completion.logprobs).double()
                    torch.testing.assert_close(actual, expected, atol=FLOAT32, rtol=0)
    finally:
        engines.shutdown()
    assert not list(Path("/dev/shm").glob("*-cpushm_*"))  # noqa: S108


@pytest.fixture(scope="module")
def room(shared_ray: RaySession) -> Iterator[Room]:
    with Reservation(shared_ray, 2) as reservation:
        yield Room(reservation, (0, 1), share=0.5)


@pytest.mark.parametrize(("seed", "told"), [
    (RAISES, r"AilingRank rank 1 on node .*: generate raised ZeroDivisionError: divided by nothing\n(?s:.*) in _ail"),
    pytest.param(DIES, r"AilingRank rank 1 on node .* died during generate", marks=pytest.mark.nightly),
    (HANGS, r"AilingRank rank 1 on node .*: generate did not return within 1 s(?s:.*) in _ail"),
])  # fmt: skip
def test_an_engine_that_fails_ends_them_all_and_is_named(room, seed, told):
    config = engine_config(Path("nowhere"), "hf", ranks=2)
    engines = EngineGroup(start_engines(AilingRank, config, Path("nowhere"), room))
    pids = [place.pid for place in engines.workers.places]
    assert len(engines.generate([[1], [2]], 2, plain(3), [0, 1])) == 2
    engines.workers._deadline_s = 1.0 if seed == HANGS else LIMIT
    with pytest.raises(RankError, match=told):
        engines.generate([[1], [2]], 2, plain(3), [0, seed])
    assert gone(pids)
    engines.shutdown()


def test_an_engine_that_does_not_start_raises_its_own_error(tmp_path, room):
    with pytest.raises(ModelError, match=r"config\.json"):
        start_engines(EngineRank, engine_config(tmp_path, "hf", ranks=2), tmp_path, room)


def test_ranks_of_an_engine_that_samples_on_stay_in_step(tmp_path):
    """Weights in flight reach both before the same token; then one of them is killed."""
    folders = [write_model(tmp_path / name, seed=seed) for seed, name in enumerate("ab", 1)]
    config = engine_config(folders[0], "vllm", ranks=2, size=2)
    in_flight = AsyncGrpo(enabled=True, in_flight_weight_updates=True, recompute_kv_cache_after_weight_updates=True)
    config = config.model_copy(update={"grpo": config.grpo.model_copy(update={"async_grpo": in_flight})})
    stream = StreamGroup.start(config, folders[0])
    try:
        _check_versions(stream, folders)
        pids = [place.pid for place in stream.workers.places]
        stream.submit([GroupRequest(9, (1, 2, 3), 9)], 8, plain(CONTEXT))
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RankError, match=r"StreamRank rank 1 .* died during"):
            stream.generate([PROMPTS[0]] * 9, 8, plain(CONTEXT), list(range(9)))
        assert gone(pids)
    finally:
        stream.shutdown()


def _check_versions(stream: StreamGroup, folders: list[Path]) -> None:
    sampling = plain(150)
    stream.submit([GroupRequest(key, tuple(prompt), key) for key, prompt in enumerate(PROMPTS)], 2, sampling)
    refit_into(stream, weights_of(folders[1]), 1)
    found: dict[int, list[Completion]] = {}
    while len(found) < len(PROMPTS):
        found.update(stream.finished(LIMIT).groups)
    models = [load_model(folder, dtype=torch.float32) for folder in folders]
    for key, prompt in enumerate(PROMPTS):
        for completion in found[key]:
            versions = torch.tensor(completion.token_versions)
            logprobs = torch.stack([reference_logprobs(model, prompt, completion.token_ids) for model in models])
            expected = logprobs.gather(0, versions[None])[0]
            torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=FLOAT32, rtol=0)
    (after,) = stream.generate([PROMPTS[0]], 1, sampling, [5])
    assert after[0].token_versions == [1] * 150
    assert stream.weight_version == 1
