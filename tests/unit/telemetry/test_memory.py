from grpo.telemetry.memory import memory_metrics


def test_memory_is_that_of_this_process():
    assert 0.05 < memory_metrics()["memory/rss_gib"] < 100
