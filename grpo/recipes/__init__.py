"""The configurations that come with the package, and the prompts that they use."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def shipped_recipes() -> dict[str, Path]:
    """Path of each recipe, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def shipped_prompt(name: str) -> Path | None:
    """Path of a prompt file that comes with the package; None where there is none of that name."""
    path = FOLDER / "prompts" / name
    return path if Path(name).name == name and path.is_file() else None
