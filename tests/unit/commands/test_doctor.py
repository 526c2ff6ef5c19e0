import json

from grpo.matrix.doctor import facts as module


def test_the_exit_code_says_whether_a_check_failed(run, monkeypatch):
    code, out, _ = run("doctor", "--partition", "h100-80g", "--format", "json")
    checks = json.loads(out)["checks"]
    assert code == int(any(check["status"] == "failed" for check in checks))
    assert all(check["fix"] for check in checks if check["status"] == "failed")
    monkeypatch.setattr(module, "_address", lambda: None)
    code, out, _ = run("doctor")
    assert (code, "add this host to /etc/hosts" in " ".join(out.split())) == (1, True)
