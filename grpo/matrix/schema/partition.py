"""`matrices/partitions/<name>.yaml`: a site's facts. A case never holds them."""

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Duration, SbatchValue, SchemaVersion

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Gpu(Section):
    """What a node must have to count as one of the partition's."""

    name: str = Field(description="as nvidia-smi says it, or a part of it")
    memory_gib: float = Field(gt=0)
    bf16_dense_tflops: float = Field(gt=0, description="datasheet, without sparsity: the denominator of MFU")
    memory_gb_per_s: float = Field(gt=0, description="datasheet")
    mig: bool = Field(False, description="whether the GPUs are cut into instances")
    driver: str | None = Field(None, pattern=r"^\d+$", description="branch, for example 580; null: any")


class Network(Section):
    control_interface: str | None = Field(None, description="for Ray, gloo and NCCL's bootstrap, for example eno1")
    hcas: list[str] = Field([], description="InfiniBand adapters of a node, for example mlx5_0; none: sockets")


class Rates(Section):
    """What `grpo canary` measured on a good node; a run below 97 % of any was on a bad one. Null: not judged."""

    bf16_matmul_tflops: float | None = Field(None, gt=0)
    device_copy_gb_per_s: float | None = Field(None, gt=0, description="written")
    host_to_device_gb_per_s: float | None = Field(None, gt=0, description="from pinned memory")
    device_to_host_gb_per_s: float | None = Field(None, gt=0)
    all_reduce_node_gb_per_s: float | None = Field(None, gt=0, description="bus bandwidth within a node")
    all_reduce_pair_gb_per_s: float | None = Field(None, gt=0, description="bus bandwidth of two nodes")


class Storage(Section):
    shared: str = Field("runs/matrix", description="folder that every node sees; a job's folder is made in it")
    scratch: str | None = Field(None, description="node-local folder for temporary files; null: TMPDIR, then /tmp")


class Ulimits(Section):
    memlock: Literal["unlimited"] | int | None = Field(None, description="KiB; null: as it is")
    nofile: int | None = Field(None, gt=0, description="open files; null: as it is")


class Slurm(Section):
    """How this site spells a request."""

    account: SbatchValue | None = None
    partition: SbatchValue | None = None
    qos: SbatchValue | None = None
    reservation: SbatchValue | None = None
    constraint: SbatchValue | None = None
    gpus: Literal["gpus-per-node", "gres", "none"] = Field("gpus-per-node", description="the option that asks for GPUs")
    gpu_type: SbatchValue | None = Field(None, description="as the site names it: gpus-per-node=TYPE:8")
    cpus_per_task: int | None = Field(None, gt=0)
    exclusive: bool = False
    maximum_time: Duration | None = Field(None, description="hours:minutes:seconds that a job may ask for")
    options: list[SbatchValue] = Field([], description="further sbatch options, each as --name or --name=value")


class Venv(Section):
    kind: Literal["venv"]
    path: str | None = Field(None, description="its folder; null: the environment that submits")


class Modules(Section):
    kind: Literal["modules"]
    load: list[str] = Field(min_length=1, description="names for `module load`")
    path: str | None = Field(None, description="a venv on top; null: the environment that submits")


class Partition(Section):
    schema_version: SchemaVersion
    description: str
    gpu: Gpu | None = Field(description="null: a partition without GPUs")
    gpus_per_node: int = Field(ge=0)
    network: Network = Network()
    canary: Rates = Rates()
    storage: Storage = Storage()
    ulimits: Ulimits = Ulimits()
    proxy: str | None = Field(None, pattern=r"^https?://[^@\s]+$", description="URL without a password")
    slurm: Slurm = Slurm()
    environment: Annotated[Venv | Modules, Field(discriminator="kind")]
    variables: list[VariableName] = Field([], description="variables of the submitting shell that a job gets")
