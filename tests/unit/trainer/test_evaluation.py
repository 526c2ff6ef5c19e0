from grpo.trainer.evaluation import Evaluator
from grpo.workers.protocol import SamplingParams
from tests.support.rollouts import ChosenScorer, RecordingGenerator, prompt

SAMPLING = SamplingParams(max_new_tokens=3, temperature=0.0)


def evaluator(reward, generator, *, count=5, batch_size=2, seed=1):
    prompts = [prompt(n) for n in range(count)]
    return Evaluator(prompts, generator, ChosenScorer(reward), SAMPLING, batch_size=batch_size, seed=seed)


def test_accuracy_counts_full_rewards_and_a_missing_verdict_is_wrong():
    rewards = [1.0, 0.5, None, 1.0, 0.0]
    metrics = evaluator(lambda number, _: rewards[number], RecordingGenerator()).evaluate().metrics
    assert metrics["validation/accuracy"] == 0.4
    assert metrics["validation/reward"] == 0.5
    assert metrics["validation/mean_length"] == 2


def test_prompts_go_in_batches_one_completion_each_with_validation_sampling():
    generator = RecordingGenerator()
    evaluator(lambda *_: 1.0, generator).evaluate()
    assert [(len(prompts), count) for prompts, count, _, _ in generator.calls] == [(2, 1), (2, 1), (1, 1)]
    assert {sampling for _, _, sampling, _ in generator.calls} == {SAMPLING}


def test_seeds_repeat_and_do_not_depend_on_the_batch_size():
    def seeds(batch_size):
        generator = RecordingGenerator()
        made = evaluator(lambda *_: 1.0, generator, batch_size=batch_size)
        made.evaluate(), made.evaluate()
        return [seed for call in generator.calls for seed in call[3]]

    assert seeds(2) == seeds(5)
    assert seeds(5)[:5] == seeds(5)[5:]
    assert len(set(seeds(5))) == 5
