import sys

import pytest

from grpo import cli


@pytest.fixture
def run(monkeypatch, capsys):
    """The command line in this process: exit code, output, errors."""

    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["grpo", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        captured = capsys.readouterr()
        return leaving.value.code, captured.out, captured.err

    return invoke
