from grpo.rollout.seeds import sampling_seed


def test_every_argument_changes_the_seed():
    seeds = {
        sampling_seed(run, purpose, n) for run in range(5) for purpose in ("train", "validation") for n in range(50)
    }
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_in_every_version():
    # printf 42/train/7 | b2sum -l 64, without its last bit
    assert sampling_seed(42, "train", 7) == 7933151398683480328
