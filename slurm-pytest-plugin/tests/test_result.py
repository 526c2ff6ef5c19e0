import json

import pytest
from slurm_pytest_plugin import Result, ResultError, read_result


def write(folder, text):
    (folder / "result.json").write_text(text if isinstance(text, str) else json.dumps(text))
    return folder


def test_what_a_job_says_of_itself(tmp_path):
    assert read_result(tmp_path) is None
    assert read_result(write(tmp_path, {"exit_code": 0})) == Result(0, "done")
    full = {
        "schema_version": 1,
        "exit_code": None,
        "stage": "setup",
        "stopped_by": "USR1",
        "failure": "infra",
        "exclude": ["n1"],
    }
    assert read_result(write(tmp_path, full)) == Result(None, "setup", "USR1", "infra", ("n1",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"exit_code": 0', "not JSON"),
        ("[]", "not a JSON object"),
        ({"exit_code": "0"}, "exit_code = '0': expected a whole number or null"),
        ({"exit_code": True}, "exit_code = True"),
        ({"failure": "gremlins"}, "failure = 'gremlins': expected null or one of infra, queue"),
        ({"exclude": "n1"}, "exclude = 'n1': expected a list"),
        ({"stage": 3}, "stage = 3"),
        ({"stopped_by": 9}, "stopped_by = 9"),
    ],
)
def test_a_file_that_is_no_result(tmp_path, text, message):
    with pytest.raises(ResultError, match=r"result\.json: ") as raised:
        read_result(write(tmp_path, text))
    assert message in str(raised.value)
