"""What each rank of a world of four does in test_sharded.py, and gives back."""

import dataclasses

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import grpo.workers.policy.dtensor as worker_module
from grpo.algorithm.objective import Denominators
from grpo.batching.micro_batches import MicroBatch
from grpo.models.parallel_plans import shard_range
from grpo.refit.endpoints import RefitSource, Settings
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.forward import needed_lengths
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.policy.vocabulary_parallel import vocabulary_parallel_logprobs
from tests.support.live_memory import LiveMemory
from tests.support.policy import VOCABULARY, joined, random_batch, tiny_config, tiny_model
from tests.support.widest import Widest

SMALL_STEPS = {"optimizer": {"kwargs": {"lr": 1e-6, "weight_decay": 0.0}}}
CONTEXTS = {}


def context(tensor, *, sequence_parallel=False):
    if (tensor, sequence_parallel) not in CONTEXTS:
        settings = {"tensor_parallel_size": tensor, "sequence_parallel": sequence_parallel}
        policy = tiny_config(policy={"dtensor_cfg": settings}).policy
        CONTEXTS[tensor, sequence_parallel] = ParallelContext.create(policy, "cpu")
    return CONTEXTS[tensor, sequence_parallel]


def config(tensor, *, loss_fn=None, sequence_parallel=False, **policy):
    settings = {"tensor_parallel_size": tensor, "sequence_parallel": sequence_parallel}
    return tiny_config(policy={"dtensor_cfg": settings, **policy}, loss_fn=loss_fn)


def run(check):
    """Cells are (name of a function here, its arguments)."""
    name, arguments = check
    return globals()[name](**arguments)


def vocabulary_parallel(*, tokens, width, vocabulary, chunk_size, temperature, dtype, with_entropy):
    """Values and gradients over all four ranks, and what was as wide as the vocabulary."""
    generator = torch.Generator().manual_seed(tokens)
    hidden, weight = (
        torch.randn(rows, width, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
        for rows in (tokens, vocabulary)
    )
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    grads = torch.randn(2, tokens, generator=generator, dtype=torch.float64)
    first, stop = shard_range(vocabulary, dist.get_rank(), dist.get_world_size())
    leaves = [hidden.requires_grad_(), weight[first:stop].clone().requires_grad_()]
    with Widest({vocabulary, stop - first}) as seen:
        values = vocabulary_parallel_logprobs(
            leaves[0], leaves[1], targets, first_row=first, group=dist.group.WORLD,
            temperature=temperature, chunk_size=chunk_size, with_entropy=with_entropy,
        )  # fmt: skip
        used = [(value, grad) for value, grad in zip(values, grads, strict=True) if value is not None]
        total = sum((value * grad.to(value.dtype)).sum() for value, grad in used)
        gradients = torch.autograd.grad(total, leaves)
    return (
        [None if each is None else each.detach().double().numpy() for each in values],
        [each.double().numpy() for each in gradients],
        sorted(seen.shapes),
    )


def widest_logits(tensor, sequence_parallel, precision, chunk_size):
    """The most rows of float32 logits that a whole update and a log-prob pass have at once; those of all tokens."""
    parallel = context(tensor, sequence_parallel=sequence_parallel)
    settings = config(
        tensor, sequence_parallel=sequence_parallel, precision=precision, logprob_chunk_size=chunk_size,
        train_micro_batch_size=64, logprob_batch_size=64, loss_fn={"entropy_coef": 0.1},
    )  # fmt: skip
    policy = DTensorPolicy(tiny_model(), settings, parallel=parallel)
    first, stop = shard_range(VOCABULARY, parallel.tp_rank, parallel.tp_size)
    with Widest({VOCABULARY, stop - first}) as seen:
        policy.train(random_batch())
        policy.logprobs(random_batch())
    return sorted(seen.shapes)


def exported(tensor, *, folder=None, precision="float32", tied=False, random=False):
    """The weights that every rank is given, and how many elements of each this rank has read and holds."""
    counts = {}

    def counting(folder, wanted):
        for name, read in original(folder, wanted):

            def counted(part, name=name, read=read):
                value = read(part)
                counts[name] = counts.get(name, 0) + value.numel()
                return value

            yield name, counted

    original = worker_module.stored_weights
    worker_module.stored_weights = counting if not random else original
    try:
        if folder is None:
            policy = DTensorPolicy(tiny_model(tied=tied), config(tensor, precision=precision), parallel=context(tensor))
        else:
            settings = config(
                tensor, precision=precision, model_name=folder, random_weights=random,
                loss_fn={"reference_policy_kl_penalty": 0.1},
            )  # fmt: skip
            settings = settings.model_copy(update={"cluster": settings.cluster.model_copy(update={"gpus_per_node": 0})})
            policy = DTensorPolicy.from_config(settings, context(tensor))
    finally:
        worker_module.stored_weights = original
    held = {name: each.to_local().numel() for name, each in policy._masters.named_parameters()}
    weights = {name: each.float().numpy().copy() for name, each in policy.export_weights()}
    batch = random_batch()
    logprobs = [policy.logprobs(batch)] + ([] if folder is None else [policy.reference_logprobs(batch)])
    return weights, counts, held, [each.numpy() for each in logprobs]


def written(tensor, *, precision, tied=False):
    """What a rank that nobody hears has in its buckets, after an update, and what the iterator gives then."""
    policy = DTensorPolicy(tiny_model(tied=tied), config(tensor, precision=precision), parallel=context(tensor))
    policy.train(random_batch())
    found, kept = {}, {}
    source = RefitSource(policy)
    manifest, _ = source.refit_describe(Settings(bucket_bytes=1500, checks="off", deadline_s=20.0, on_gpu=False))
    source.refit_open("shared", 0, "127.0.0.1")
    unheard = source._open
    publish, free = unheard.publish, unheard.free

    def looked_at(bucket):
        for weight, each in zip(bucket.weights, kept[bucket.index].tensors, strict=True):
            found[weight.name] = each.float().numpy().copy()
        publish(bucket)

    def noted(bucket):
        kept[bucket.index] = free(bucket)
        return kept[bucket.index]

    unheard.publish, unheard.free = looked_at, noted
    assert source.refit_send(1) is None
    unheard.publish, unheard.free = publish, free
    with LiveMemory() as made:
        source.refit_send(2)
    exported = {name: each.float().numpy() for name, each in policy.export_weights()}
    return found, exported, manifest, made.peak


def gathered(policy):
    """The whole state of a policy on every rank, and how many elements this one gave."""
    pieces, values = policy.state()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [dataclasses.replace(piece, data=piece.data.clone()) for piece in pieces])
    return joined([piece for own in everyone for piece in own]), values, sum(piece.data.numel() for piece in pieces)


def resumed(tensor, other):
    """A run of four updates, one that resumes it after two in another layout, and how near they come."""
    batches = [random_batch(seed=seed) for seed in range(4)]
    policy = DTensorPolicy(tiny_model(), config(tensor), parallel=context(tensor))
    for batch in batches[:2]:
        policy.train(batch)
    saved, values, given = gathered(policy)
    share = given / sum(each.numel() for each in saved.values())
    metrics = [dict(policy.train(batch).metrics) for batch in batches[2:]]
    again = DTensorPolicy(tiny_model(seed=8), config(other), parallel=context(other))
    again.train(batches[3])
    again.logprobs(batches[0])
    again.load_state(saved, values)
    back = gathered(again)[0]
    same = back.keys() == saved.keys() and all(torch.equal(back[name], each) for name, each in saved.items())
    resumed_metrics = [dict(again.train(batch).metrics) for batch in batches[2:]]
    ends = [gathered(each)[0] for each in (policy, again)]
    furthest = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    return share, same, metrics, resumed_metrics, furthest


def refused_update(tensor):
    """What a gradient that is not finite comes to, and whether the weights stayed."""
    policy, batch = DTensorPolicy(tiny_model(), config(tensor), parallel=context(tensor)), random_batch()
    before = {name: each.clone() for name, each in policy.export_weights()}
    bad = batch.advantages.clone()
    bad[1] = torch.nan
    try:
        policy.train(batch.with_values(advantages=bad))
        message = None
    except FloatingPointError as error:
        message = str(error)
    same = all(torch.equal(each, before[name]) for name, each in policy.export_weights())
    return message, same, dict(policy.train(batch).metrics)


def small_updates_in_bfloat16(tensor):
    """How far masters and exported weights move in three updates of 1e-6, and the loss beside float32's."""
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(0.02)
    policy = DTensorPolicy(model, config(tensor, precision="bfloat16", **SMALL_STEPS), parallel=context(tensor))
    name = "model.layers.0.mlp.down_proj.weight"
    rounded = dict(policy.export_weights())[name]
    start = gathered(policy)[0]
    metrics = [dict(policy.train(random_batch()).metrics) for _ in range(3)]
    end = gathered(policy)[0]
    moved = {"masters": float((end["model." + name] - start["model." + name]).abs().max())}
    exported_same = torch.equal(dict(policy.export_weights())[name], rounded)
    return moved, exported_same, rounded.dtype == torch.bfloat16, metrics


class Messages(TorchDispatchMode):
    """Dtypes of all tensors of one dimension that ranks send: of parameters and gradients, activations have more."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func._schema.name and "reduce" in func._schema.name:
            sent = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
            self.dtypes |= {each.dtype for each in sent if each.ndim == 1}
        return func(*args, **(kwargs or {}))


def reductions(tensor, sequence_parallel, kind):
    """Gradients in bfloat16 compute: dtypes of the weights that pass, of the sums and of what ranks send for them; the
    share of this rank's elements that bfloat16 could not hold after one micro-batch a rank; and how far two
    micro-batches are from the sum of each.
    """
    parallel = context(tensor, sequence_parallel=sequence_parallel)
    on_policy = {"force_on_policy_ratio": True}  # a clipped sequence would have no gradient
    settings = config(tensor, sequence_parallel=sequence_parallel, precision="bfloat16", loss_fn=on_policy)
    policy = DTensorPolicy(tiny_model(kind), settings, parallel=parallel)
    batch = random_batch((7,) * 2 * parallel.dp_size, (2,) * 2 * parallel.dp_size).with_values(old_logprobs=None)
    denominators, passed = Denominators(tokens=40.0, sequences=8.0), set()
    policy._masters.model.layers[0].mlp.register_forward_pre_hook(
        lambda mlp, inputs: passed.update((mlp.up_proj.weight.dtype, inputs[0].dtype))
    )

    def gradients(*rounds):
        for each in rounds:
            micro = MicroBatch([parallel.dp_rank + each * parallel.dp_size], 6, 6)
            policy._backward(batch, micro, needed_lengths(batch), denominators)
        found = [each.grad.to_local() for each in policy._masters.parameters()]
        policy._optimizer.zero_grad()
        return torch.cat([each.flatten() for each in found])

    with Messages() as sent:
        one = gradients(0)
    other, both = gradients(1), gradients(0, 1)
    used = one != 0
    finer = (one != one.bfloat16())[used].double().mean().item()
    error = ((both - (one + other)).abs().max() / both.abs().max()).item()
    return passed, {one.dtype, *sent.dtypes}, used.double().mean().item(), finer, error


def untrained(tensor):
    """A batch without a trained token makes no update and exchanges nothing."""
    policy, batch = DTensorPolicy(tiny_model(), config(tensor), parallel=context(tensor)), random_batch()
    result = policy.train(batch.with_values(mask=torch.zeros_like(batch.mask)))
    return result.trained_tokens, result.metrics["loss"], policy.weight_version
