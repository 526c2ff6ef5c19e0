"""What is worked out before the parts of a run are started."""

import pytest

from grpo.trainer.assemble import updates_per_step
from tests.support.small_run import small


@pytest.mark.parametrize(("batch", "updates"), [(12, 1), (8, 2), (5, 3), (4, 3)])
def test_a_step_has_an_update_for_its_last_few_samples_too(tmp_path, batch, updates):
    config = small(tmp_path).config
    policy = config.policy.model_copy(update={"train_global_batch_size": batch})
    assert updates_per_step(config.model_copy(update={"policy": policy})) == updates
