"""A status as a few lines for people."""

from grpo.matrix.judge.words import number, per_cent, phase_words, signed
from grpo.matrix.status import Status, StepView

_LEAST_SHARE = 0.005  # of the step: what is less did not grow


def status_lines(status: Status) -> list[str]:
    """One fact a line; what is not known is left out."""
    lines = [str(status.folder)]
    if status.case is not None:
        lines.append(f"case        {status.case} on {status.partition}")
    if status.job is not None:
        lines.append(f"job         {_job(status)}")
    if status.run is not None:
        lines.append(f"run         {status.run}{f': {status.reason}' if status.reason else ''}")
    elif status.stage is not None:
        lines.append(f"run         none: the job ended in its {status.stage}")
    else:
        lines.append("run         not begun")
    if status.step is not None:
        lines.append(f"step        {status.step}{f' of {status.max_steps}' if status.max_steps else ''}")
    if status.run is not None:
        saved = "none" if status.checkpoint is None else f"step {status.checkpoint[0]}: {status.checkpoint[1]}"
        lines.append(f"checkpoint  {saved}")
    if status.seconds is not None:
        hours = f"{status.gpu_hours:.2f} GPU-hours, " if status.gpus and status.gpu_hours is not None else ""
        lines.append(f"cost        {hours}{clock(status.seconds)} on the clock")
    if status.timing is not None:
        lines.append(f"median step {step_words(status.timing)}")
    return lines


def step_words(step: StepView) -> str:
    """`178 s (147, +21 %): refit +12, other +11`; what shrank is told as well."""
    text = f"{number(round(step.seconds, 3))} s"
    if step.reference is None:
        return f"{text} over {step.steps} steps"
    text += f" ({number(step.reference)}, {per_cent(step.seconds / step.reference - 1)})"
    changed = [share for share in step.shares if abs(share.seconds) > _LEAST_SHARE * step.reference]
    if not changed:
        return text
    return f"{text}: " + ", ".join(f"{phase_words(share.phase)} {signed(share.seconds)}" for share in changed)


def clock(seconds: float) -> str:
    """hours:minutes:seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _job(status: Status) -> str:
    job = status.job
    assert job is not None
    parts = [job.job_id, job.state, f"({job.reason})" if job.reason else "", f"on {job.nodes}" if job.nodes else ""]
    return " ".join(part for part in parts if part)
