"""The policy worker on Megatron-Core: tensor, pipeline, sequence and data parallelism."""
