"""What the phases' ratios say together, before anybody looks at a machine."""

from collections.abc import Iterable, Mapping

from grpo.matrix.judge.words import phase_words

ALIKE = 0.05  # by which two ratios may differ and still be one
APART = 0.10
_MAIN = ("generation", "policy_training", "logprobs", "refit")


def patterns(ratios: Mapping[str, float], longer: float | None) -> Iterable[str]:
    """Sentences. `ratios` are run over reference by phase; `longer` is that of the generated tokens."""
    if longer is not None and abs(longer - 1) >= 0.02:
        word = "longer" if longer > 1 else "shorter"
        yield (
            f"answers are {100 * abs(longer - 1):.0f} % {word}: about as much of generation, log-probs and training is "
            "work and not speed"
        )
    main = {phase: ratios[phase] for phase in _MAIN if phase in ratios}
    if len(main) >= 3 and min(main.values()) > 1 + ALIKE and max(main.values()) - min(main.values()) <= 2 * ALIKE:
        yield (
            f"every phase is slower by about the same factor ({min(main.values()):.2f} to {max(main.values()):.2f}): "
            "clocks, power or somebody else's job on the nodes rather than a setting"
        )
        return
    yield from _compute(main)
    yield from _refit(main)


def _compute(main: Mapping[str, float]) -> Iterable[str]:
    training, logprobs = main.get("policy_training"), main.get("logprobs")
    if training is None or logprobs is None or training <= 1 + ALIKE:
        return
    if training - logprobs > APART:
        yield (
            f"training is {training:.2f}x and log-probs, the same layers forward, {logprobs:.2f}x: not the GPUs' speed "
            "in matrix products, but what training has besides: backward, gradients over the network, the optimizer"
        )
    elif abs(training - logprobs) <= ALIKE:
        yield (
            f"training and log-probs are slower by the same factor ({training:.2f}x and {logprobs:.2f}x): the layers "
            "themselves, by the GPUs' clocks or the collectives in them"
        )


def _refit(main: Mapping[str, float]) -> Iterable[str]:
    refit = main.get("refit")
    others = {phase: ratio for phase, ratio in main.items() if phase != "refit"}
    if refit is None or not others or refit - max(others.values()) <= APART:
        return
    phase, most = max(others.items(), key=lambda pair: pair[1])
    yield (
        f"refit is {refit:.2f}x and nothing else more than {most:.2f}x ({phase_words(phase)}): it moves weights and "
        "computes nothing, so look at the links (node to node, host to GPU) and at how the weights are sent"
    )
