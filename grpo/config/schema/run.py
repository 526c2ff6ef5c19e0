"""`checkpointing.*`, `logger.*`, `cluster.*`: what surrounds the training."""

from typing import Literal

from pydantic import Field

from grpo.config.schema.base import Section


class Checkpointing(Section):
    enabled: bool = True
    checkpoint_dir: str | None = Field(None, description="null: `checkpoints` in the run directory")
    save_period: int = Field(10, gt=0, description="steps")
    keep_latest: int = Field(2, gt=0, description="two: if the newest is damaged, there is one before it")
    keep_top_k: int = Field(3, ge=0, description="best by metric_name, besides the latest")
    metric_name: str = Field("validation/accuracy", description="of metrics.jsonl")
    higher_is_better: bool = True
    save_at_end: bool = True
    keep_every_n_steps: int | None = Field(None, gt=0, description="every checkpoint of a multiple is kept for good")
    checkpoint_must_save_by: str | None = Field(
        None,
        pattern=r"^[0-9]{2}:([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]$",
        description="DD:HH:MM:SS after the start of the process; the run saves by then and asks to be started again",
    )
    stop_grace_s: float = Field(
        30.0, ge=0, description="seconds from a stop signal to the kill; a rollout that leaves no time is given up"
    )
    async_save: bool = Field(
        False, description="copy the state to memory of the CPU and write it while training goes on"
    )
    load_optimizer: bool = Field(
        True, description="false resumes with the weights alone and begins the optimizer's state anew"
    )


class WandbCfg(Section):
    project: str = "grpo"
    name: str | None = None


class MlflowCfg(Section):
    experiment_name: str = "grpo"
    run_name: str | None = None


class Logger(Section):
    log_dir: str = Field("runs/grpo", description="the run directory")
    tensorboard_enabled: bool = True
    wandb_enabled: bool = False
    wandb: WandbCfg = WandbCfg()
    mlflow_enabled: bool = False
    mlflow: MlflowCfg = MlflowCfg()
    num_val_samples_to_print: int = Field(
        0, ge=0, description="validation samples written to samples.jsonl and the console"
    )


class Cluster(Section):
    num_nodes: int = Field(1, gt=0)
    gpus_per_node: int = Field(1, ge=0, description="0 runs on the CPU")
    cpu_ranks: int = Field(1, gt=0, description="training processes of a CPU run")
    cpu_engine_ranks: int | None = Field(
        None,
        gt=0,
        description="generation processes of a CPU run, a multiple of policy.generation.vllm_cfg.tensor_parallel_size; "
        "null: as many, which is one engine",
    )
    cpu_threads: int | None = Field(
        None, gt=0, description="torch threads of a CPU run; null: torch's own choice, which OMP_NUM_THREADS sets"
    )
    launcher: Literal["in_process", "ray"] | None = Field(
        None,
        description="'ray' runs the policy and the generation engine in processes of their own; null: so where there "
        "are several, else 'in_process'",
    )
    ray_address: str | None = Field(
        None, description="host:port of a running Ray cluster, or 'auto'; null: Ray is started on this machine"
    )
    join_timeout_s: float = Field(
        120.0, ge=0, description="seconds that nodes of the cluster at `ray_address` may take to come up"
    )
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="dense bfloat16 TFLOP/s of one device, what performance/mfu is a share of; null: of the GPU's "
        "datasheet. A CPU run has no MFU without it",
    )
    step_timeout_s: float = Field(
        14400.0,
        gt=0,
        description="seconds that one step may take before the run writes its stacks to standard error and exits "
        "with status 1",
    )
    canary: Literal["auto", "on", "off"] = Field(
        "auto", description="measure this node before training; 'auto': in a Slurm job, and not elsewhere"
    )
    canary_file: str | None = Field(
        None,
        description="a canary.json that was measured on all nodes of the job already; null: measure this node",
    )
    worker_timeout_s: float = Field(
        1800.0, gt=0, description="seconds that a worker process may take for its start or one call before it is killed"
    )
