"""How fast a step was: tokens a second and device, and the share of the devices' arithmetic that training used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo.batching.batch import Batch
from grpo.config.layout import layout
from grpo.config.schema import Config
from grpo.models.dimensions import Dimensions
from grpo.models.flops import training_flops
from grpo.models.peak import datasheet_peak
from grpo.rollout.source import Rollout
from grpo.trainer.supported import world_size
from grpo.workers.policy.forward import needed_lengths


@dataclass(frozen=True)
class Throughput:
    """What a step's figures are divided by."""

    devices: int  # of the whole run
    training_devices: int
    peak_tflops: float | None  # of all that train together, dense bfloat16; None: there is no MFU
    dimensions: Dimensions

    @classmethod
    def of(cls, config: Config, dimensions: Dimensions, device_names: Sequence[str]) -> Throughput:
        """`device_names`: of each training rank's device, as `torch.cuda.get_device_name` gives it; "cpu" for a CPU.

        The peak is `cluster.peak_tflops` for each, or the sum of the datasheets' (`grpo.models.peak`).
        """
        training, given = layout(config).training_gpus, config.cluster.peak_tflops
        peaks = [datasheet_peak(name) for name in device_names]
        known = [peak.tflops for peak in peaks if peak is not None]
        together = sum(known) if len(known) == len(peaks) else None
        return cls(world_size(config), training, together if given is None else given * training, dimensions)

    def metrics(self, rollout: Rollout, batch: Batch, times: Mapping[str, float]) -> dict[str, float]:
        """Of a step whose phases took `times`, by their metrics' names.

        Tokens are those of all samples, prompt and generated, without padding, over the whole step. MFU is the model
        FLOPs of the updates (`grpo.models.flops`: causal attention counts half, recomputed work does not count) over
        the datasheet's peak and `timing/policy_training`, the driver's seconds of that phase.
        """
        seconds = times["timing/total"]
        tokens = rollout.generated_tokens + rollout.prompt_tokens
        found = {
            "performance/tokens_per_second_per_gpu": tokens / seconds / self.devices,
            "performance/generated_tokens_per_second": rollout.generated_tokens / seconds,
        }
        work = self._training_tflops(batch) / times["timing/policy_training"] / self.training_devices
        found["performance/training_tflops_per_gpu"] = work
        if self.peak_tflops is not None and work > 0:
            found["performance/mfu"] = work * self.training_devices / self.peak_tflops
        return found

    def _training_tflops(self, batch: Batch) -> float:
        """Of the tokens that the updates put into the model: a sequence without trained tokens is left out."""
        lengths = [length for length in needed_lengths(batch).tolist() if length]
        return training_flops(self.dimensions, lengths, float(batch.mask.sum())).total / 1e12
