from benchmarks.gpu.parts import H200, LARGEST_SHARE
from benchmarks.gpu.plan import GPU_MEMORY, planned_training_bytes
from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import SHAPES_BY_NAME


def test_eight_billion_take_eighteen_bytes_a_parameter_and_more_than_an_h200_has():
    config = worker_config(4096, precision="bfloat16")
    found = planned_training_bytes(SHAPES_BY_NAME["8b"], config)
    assert found["parameters"] + found["gradients"] + found["optimizer"] == 18 * 8_030_261_248
    assert sum(found.values()) > GPU_MEMORY


def test_some_of_the_layers_to_try_fit():
    config = worker_config(4096, precision="bfloat16")
    plans = [sum(planned_training_bytes(H200.large.with_layers(each), config).values()) for each in H200.layers]
    assert plans == sorted(plans, reverse=True)
    assert plans[-1] < plans[-2] < LARGEST_SHARE * GPU_MEMORY
