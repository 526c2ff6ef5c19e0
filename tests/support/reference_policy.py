"""A policy's updates again: one process, float64, sequence by sequence, from the formulas; no batching, no parallelism.

Imports nothing from `grpo.algorithm` or `grpo.batching`.
"""

import torch

from tests.unit.algorithm.reference import reference_objective

OPTIONS = {
    "kind": "clipped", "ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": None,
    "force_on_policy_ratio": False, "aggregation": "token_mean", "aggregation_norm_length": 10, "entropy_coef": 0.0,
    "kl_penalty": 0.0, "kl_kind": "k3", "kl_in_loss": True, "kl_on_policy_gradient": True, "kl_input_clamp": 20.0,
    "kl_output_clamp": 10.0, "use_correction": False, "correction_kind": "token", "correction_cap": 1.1,
    "correction_min": 0.8, "correction_max": 1.25,
}  # fmt: skip


def token_statistics(model, sequences, temperature):
    """For each sequence log-probs [length] and entropies [length]; the first of a sequence is never to be read."""
    result = []
    for tokens in sequences:
        log_p = (model(input_ids=tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)
        chosen = log_p.gather(1, tokens[1:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        result.append([torch.cat([each.new_zeros(1), each]) for each in (chosen, entropy)])
    return result


class ReferencePolicy:
    """`model` in float64 and AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping by the global norm."""

    def __init__(self, model, options, *, temperature, lr, betas, eps, weight_decay, max_norm):
        self.model = model.double()
        self.options = {**OPTIONS, **options}
        self.temperature, self.lr, self.betas, self.eps = temperature, lr, betas, eps
        self.weight_decay, self.max_norm = weight_decay, max_norm
        self.moments = {name: [torch.zeros_like(each)] * 2 for name, each in self.model.named_parameters()}
        self.updates = 0

    @torch.no_grad()
    def logprobs(self, sequences):
        """[T] float64, 0 for first tokens."""
        return torch.cat([logprobs for logprobs, _ in token_statistics(self.model, sequences, self.temperature)])

    def train(self, sequences, values):
        """Metrics of one update; `values` has per token `mask`, `gen`, `old`, `ref`, and per sequence `advantages`."""
        current = token_statistics(self.model, sequences, self.temperature)
        ids = [row for row, tokens in enumerate(sequences) for _ in tokens]
        zeros = torch.zeros(len(ids), dtype=torch.float64)
        mask = values["mask"].tolist()
        case = {
            "l": torch.cat([logprobs for logprobs, _ in current]).unbind(),
            "entropy": torch.cat([entropy for _, entropy in current]).unbind(),
            "gen": values["gen"].double(), "old": values["old"].double() if values["old"] is not None else None,
            "ref": values["ref"].double() if values["ref"] is not None else zeros,
            "mask": mask, "ids": ids, "advantages": values["advantages"].tolist(),
        }  # fmt: skip
        trained = {row for row, each in zip(ids, mask, strict=True) if each}
        loss, metrics = reference_objective(case, self.options, sum(mask), len(trained))
        if values["ref"] is None:
            del metrics["kl_penalty"]
        if not self.options["entropy_coef"]:
            del metrics["entropy"]
        parameters = dict(self.model.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(each) if gradient is None else gradient
            for (name, each), gradient in zip(parameters.items(), gradients, strict=True)
        }
        metrics["grad_norm"] = float(torch.stack([each.norm() for each in gradients.values()]).norm())
        self._adamw(parameters, gradients, min(1.0, self.max_norm / max(metrics["grad_norm"], 1e-30)))
        return metrics

    @torch.no_grad()
    def _adamw(self, parameters, gradients, scale):
        self.updates += 1
        first, second = self.betas
        for name, parameter in parameters.items():
            gradient = gradients[name] * scale
            mean, square = self.moments[name]
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient**2
            self.moments[name] = [mean, square]
            parameter.mul_(1 - self.lr * self.weight_decay)
            corrected = (square / (1 - second**self.updates)).sqrt() + self.eps
            parameter.sub_(self.lr * mean / (1 - first**self.updates) / corrected)
