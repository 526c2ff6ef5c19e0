import pytest

from grpo.errors import ConfigError
from grpo.workers.megatron import compat


@pytest.mark.parametrize("found", ["0.16.0", "0.16.1", "0.17.0", "0.19.2"])
def test_versions_that_were_tried_are_taken(monkeypatch, found):
    monkeypatch.setattr(compat, "version", lambda _: found)
    compat.check_version()


@pytest.mark.parametrize("found", ["0.15.3", "0.16.0rc1", "0.20.0"])
def test_others_are_refused_with_those_that_would_do(monkeypatch, found):
    monkeypatch.setattr(compat, "version", lambda _: found)
    with pytest.raises(ConfigError, match=rf"megatron-core {found} is installed; versions from 0\.16 to below 0\.20"):
        compat.check_version()
