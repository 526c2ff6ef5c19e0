from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path):
    """Write a recipe below the test's folder, which is the working directory; gives its name."""

    def writer(text, name="own.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return writer


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not any(Path.cwd().glob("*.yaml"))
