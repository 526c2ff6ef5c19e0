"""The recorder behind the test that every key is read: `tests/support/config_reads.py`."""

import re
import threading

import pytest

from grpo.config import load_config
from grpo.config.schema import Section
from tests.support.config_reads import leaf_keys, record_reads


@pytest.fixture(scope="module")
def config():
    return load_config("tiny").config


def test_the_leaves_are_those_that_have_a_provenance():
    resolved = load_config("tiny")
    free_form = re.compile(r"(?<=\.kwargs)\.(split|count)$")
    assert leaf_keys(resolved.config) == {free_form.sub("", key) for key in resolved.provenance}


def test_what_is_read_is_recorded_and_nothing_else(config):
    with record_reads(config) as reads:
        generation = reads.config.policy.generation
        assert generation.temperature == 1.0
        assert reads.config.env["exact_match"].verifier == "exact_match"
    assert reads.read == {"policy.generation.temperature", "env.exact_match.verifier"}
    assert set(reads.unread) == leaf_keys(config) - reads.read


def test_sections_of_one_class_are_told_apart(config):
    with record_reads(config) as reads:
        assert reads.config.data.validation.input_key == "prompt"
    assert reads.read == {"data.validation.input_key"}


def test_reads_of_other_configurations_and_after_the_block_do_not_count(config):
    with record_reads(config) as reads:
        assert config.grpo.seed == 42
    assert reads.config.grpo.seed == 42
    assert reads.read == set()
    assert "__getattribute__" not in Section.__dict__


def test_reads_of_other_threads_count(config):
    with record_reads(config) as reads:
        thread = threading.Thread(target=lambda: reads.config.grpo.seed)
        thread.start()
        thread.join()
    assert reads.read == {"grpo.seed"}


def test_the_copy_is_the_same_configuration_and_the_patch_goes_after_an_error(config):
    def fails():
        with record_reads(config) as reads:
            assert reads.config == config
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "__getattribute__" not in Section.__dict__
