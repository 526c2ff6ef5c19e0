"""The refit phase of a GPU that policy and engine share, all its parts: `python -m benchmarks.refit_phase --help`.

Policy and engine are in processes of their own. The engine sleeps at level 2 while the policy trains, and the policy's
masters and Adam's moments (made of zeros) stay on the GPU in one half of the rounds and leave it in the other. No
update is made, so that no gradients take room, but before each round all counts as changed by one: else what the host
has a copy of would not be copied again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer

from benchmarks.refit import ONLOAD, Running, configured, goal_s, one_round
from grpo.config import layout
from grpo.config.schema import Config
from grpo.models.locate import locate_model
from grpo.placement.placement import Placement, sleep_until_needed
from grpo.placement.resources import Resource
from grpo.placement.table import Sharing, colocated
from grpo.refit.factory import refits
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.engine_rank import EngineRank
from grpo.workers.generation.engine_start import Engines
from grpo.workers.groups.calls import in_thread
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.reservation import reserved_for
from grpo.workers.policy.factory import make_rank
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.policy.rank_policy import RankPolicy

LIMIT_S = 0.5  # of the phase where nothing is offloaded
BUS_BYTES_S = 54e9  # of pinned copies, each way
BUS_ROOM = 1.2
PARTS = (
    "offload", "copy", "free", "release", "wake weights", "export", "transfer", "load", "wake kv_cache", "rest"
)  # fmt: skip


class MeasuredRank:
    """A `RankPolicy` that says what its moves were made of."""

    def __init__(self, rank: RankPolicy) -> None:
        self._rank = rank
        self._policy = cast("Any", rank._policy)  # noqa: SLF001
        self._seconds: dict[str, float] = {}
        memory = self._policy.resources.memory
        for name in ("offload", "drop", "release"):
            setattr(memory, name, self._timed(name, getattr(memory, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank, name)

    def make_moments(self) -> int:
        """Adam's state as its first update makes it; bytes of masters and moments."""
        optimizer = self._policy._optimizer  # noqa: SLF001
        nbytes = 0
        for parameter in optimizer._parameters.values():  # noqa: SLF001
            optimizer._adamw.state[parameter] = {  # noqa: SLF001
                "step": torch.ones((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
            nbytes += 3 * parameter.nbytes
        return nbytes

    def updated(self) -> None:
        """As an update ends: what the host has is old."""
        self._policy.resources.changed(Resource.POLICY_PARAMETERS, Resource.OPTIMIZER_STATE)

    def rounding_s(self) -> float:
        """Of all masters into memory of the compute dtype: what a rank does to its shards before they are gathered."""
        masters = list(self._policy._masters.parameters())  # noqa: SLF001
        largest = max(each.numel() for each in masters)
        place = torch.empty(largest, dtype=torch.bfloat16, device=masters[0].device)
        found = []
        for _ in range(4):
            _synchronise()
            started = time.perf_counter()
            for each in masters:
                place[: each.numel()].view(each.shape).copy_(each.detach())
            _synchronise()
            found.append(time.perf_counter() - started)
        return min(found)

    def held(self) -> dict[str, float]:
        """GiB."""
        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        return {
            "allocated": torch.cuda.memory_allocated() / 2**30, "reserved": torch.cuda.memory_reserved() / 2**30,
            "driver, both processes": (total - free) / 2**30,
        }  # fmt: skip

    def take_seconds(self) -> dict[str, float]:
        """Of copying to the host, of freeing storages, and of giving memory back to the driver."""
        seconds, self._seconds = self._seconds, {}
        offload, drop = seconds.get("offload", 0.0), seconds.get("drop", 0.0)
        return {"copy": max(0.0, offload - drop), "free": drop, "release": seconds.get("release", 0.0)}

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            _synchronise()
            started = time.perf_counter()
            try:
                return work(*arguments, **keywords)
            finally:
                self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

        return timed


class TimedEngine:
    """An `EngineGroup`, and the seconds of its waking by what wakes."""

    def __init__(self, engine: EngineGroup) -> None:
        self._engine = engine
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wake(self, tags: Sequence[Any]) -> None:
        started = time.perf_counter()
        self._engine.wake(tags)
        self.seconds[f"wake {' '.join(tags)}"] = time.perf_counter() - started


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured_rank(config: Config) -> MeasuredRank:
    """In the policy's process."""
    return MeasuredRank(make_rank(config))


def measured(running: Running, group: RayGroup, engine: TimedEngine, rounds: int) -> Iterator[dict[str, float]]:
    """Of each round the seconds of the phase, as `whole`, and of its parts."""
    for _ in range(rounds):
        engine.seconds = {}
        group.call_all("take_seconds")
        group.call_all("updated")
        times = one_round(running)
        parts = {key.removeprefix("timing/refit/"): value for key, value in times.items() if "refit/" in key}
        (moves,) = group.call_all("take_seconds")
        row = {"whole": times["timing/refit"], **parts, **moves, **engine.seconds}
        row["onload"] = times.get(ONLOAD, 0.0)
        row["rest"] = row["whole"] - sum(
            row.get(each, 0.0) for each in ("offload", "wake", "export", "transfer", "load", "connect")
        )
        yield row | {key: value for key, value in times.items() if key.startswith("performance/")}


def page(name: str, results: Mapping[str, Any], config: Config) -> str:
    """Medians of the rounds after the first of each half, in milliseconds."""
    halves = {half: results[half][1:] for half in ("stays", "leaves") if len(results.get(half, [])) > 1}
    lines = [f"# {name}", "", "| ms | " + " | ".join(halves) + " |", "|---|" + "---:|" * len(halves)]
    middles = {half: _middles(rows) for half, rows in halves.items()}
    for part in ("whole", *PARTS):
        values = [middles[half].get(part, 0.0) for half in halves]
        if any(values):
            lines.append(f"| {part} | " + " | ".join(f"{1000 * each:.1f}" for each in values) + " |")
    for half, rows in halves.items():
        spread = [1000 * row["whole"] for row in rows]
        lines += ["", f"{half}: {len(rows)} rounds after the first, whole {min(spread):.1f} - {max(spread):.1f} ms."]
    if "stays" in middles:
        stays = middles["stays"]
        nbytes = stays["performance/refit_gib"] * 2**30
        goal = goal_s(config, nbytes)
        moving = sum(stays.get(part, 0.0) for part in ("export", "transfer", "load"))
        if goal is not None:
            lines += ["", f"Transfer of {nbytes / 1e9:.2f} GB: {1000 * moving:.1f} ms; goal {1000 * goal[1]:.1f} ms."]
        lines.append(f"Phase: {stays['whole']:.3f} s; goal {LIMIT_S} s.")
    if len(middles) > 1:
        more = middles["leaves"]["whole"] - middles["stays"]["whole"]
        least = results["optimizer_bytes"] / BUS_BYTES_S
        lines.append(
            f"Offload of {results['optimizer_bytes'] / 1e9:.1f} GB: {more:.3f} s more, {more / least:.2f} x bytes / "
            f"54 GB/s; goal {BUS_ROOM} x."
        )
        lines += ["", *_rates(results["optimizer_bytes"], results["leaves"][0], middles["leaves"])]
    lines += ["", *(f"{key}: {results[key]}" for key in ("rounding_s", "held", "left_out") if key in results)]
    return "\n".join(lines) + "\n"


def _rates(nbytes: int, first: Mapping[str, float], leaves: Mapping[str, float]) -> Iterator[str]:
    """Of the copies each way, and of the first one, before which host memory is made."""
    for what, seconds in (
        ("Copied to the host", leaves.get("copy", 0.0)),
        ("Back, with its memory allocated anew", leaves.get("onload", 0.0)),
        ("The first time, with page-locked memory made", first.get("copy", 0.0)),
    ):
        if seconds:
            yield f"{what}: {seconds:.3f} s, {nbytes / 1e9 / seconds:.1f} GB/s."


def _middles(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row.get(key, 0.0) for row in rows) for key in {key for row in rows for key in row}}


def available_bytes() -> int:
    """Of host memory, for pinning."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        found = min(found, int(text) - int(used.read_text()))
    return found


def main(
    model: Annotated[str, typer.Argument(help="hub id of a shape that ships")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    *,
    rounds: Annotated[int, typer.Option(min=2, help="of each half; the first connects, or pins host memory")] = 6,
    out: Annotated[Path, typer.Option(help="folder for NAME.json and NAME.md")] = Path(),
    name: Annotated[str, typer.Option()] = "refit-phase",
) -> None:
    """Measure the phase."""
    typer.echo(measure(model, overrides or [], rounds=rounds, out=out, name=name))


def measure(
    model: str, overrides: Sequence[str], *, rounds: int, out: Path, name: str,
    make_policy: Callable[..., MeasuredRank] = measured_rank, make_engine: Callable[..., Any] = EngineRank,
) -> str:  # fmt: skip
    """Both halves; what is known is in the files as soon as it is."""
    config = configured("tiny", [
        f"policy.model_name={model}", "policy.random_weights=true", "policy.precision=bfloat16",
        "cluster.launcher=ray", "cluster.gpus_per_node=1", "policy.generation.backend=vllm",
        "policy.generation.colocated.sleep_level=2", "policy.generation.colocated.offload_optimizer=true", *overrides,
    ])  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"name": name, "model": model, "overrides": list(overrides)}

    def keep(**found: Any) -> None:
        results.update(found)
        (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
        (out / f"{name}.md").write_text(page(name, results, config))

    with ExitStack() as stack:
        began = time.perf_counter()
        group, engine = _start(stack, config, make_policy, make_engine)
        policy = PolicyGroup(group)
        (nbytes,) = group.call_all("make_moments")
        keep(start_s=time.perf_counter() - began, optimizer_bytes=nbytes)
        refit = refits(config, policy, engine._engine)  # noqa: SLF001
        for half, offload in (("stays", False), ("leaves", True)):
            if offload and available_bytes() < 1.05 * nbytes + (4 << 30):
                keep(left_out=f"{nbytes / 1e9:.1f} GB do not fit into {available_bytes() / 1e9:.1f} GB of the host")
                break
            plan = colocated(Sharing(sleep_level=2, offload_optimizer=offload), reference=False)
            running = Running(config, policy, refit, PhaseTimer(entering=Placement(plan, policy, engine).enter))
            rows: list[dict[str, float]] = []
            for row in measured(running, group, engine, rounds):
                rows.append(row)
                keep(**{half: rows})
            keep(**{f"held, {half}": group.call_all("held")[0]})
            if not offload:
                keep(rounding_s=group.call_all("rounding_s")[0])
        keep(whole_s=time.perf_counter() - began)
    return page(name, results, config)


def _start(stack: ExitStack, config: Config, make_policy: Any, make_engine: Any) -> tuple[RayGroup, TimedEngine]:
    """Both at the same time; Adam's moments are made later, when the engine sleeps."""
    rooms = stack.enter_context(reserved_for(config))
    if rooms is None:
        raise typer.BadParameter("cluster.launcher must be ray")
    path, size = locate_model(config.policy.model_name, None), layout(config).engine_parallel_size
    options: dict[str, Any] = {
        "deadline_s": config.cluster.worker_timeout_s, "environment": {"OMP_NUM_THREADS": "4"},
    }  # fmt: skip
    starting = in_thread(lambda: RayGroup(make_policy, [config], reservation=rooms.policy, **options))
    ranks = RayGroup(make_engine, [config, path, "refit"], reservation=rooms.engines, ranks_together=size, **options)
    engine = TimedEngine(EngineGroup(Engines(ranks, size)))
    stack.callback(engine.shutdown)
    sleep_until_needed(colocated(Sharing(sleep_level=2), reference=False), engine)
    group = starting.result()
    stack.callback(group.shutdown)
    return group, engine


if __name__ == "__main__":
    typer.run(main)
