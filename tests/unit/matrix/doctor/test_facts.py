from grpo.matrix.doctor.facts import _adapters, _locked, folder_of, gather


def test_this_machine(tmp_path):
    facts = gather({"https_proxy": "http://p:1", "WANDB_API_KEY": "hunter2", "TMPDIR": str(tmp_path)})
    assert facts.python >= (3, 11)
    assert "torch" in facts.packages
    assert any(line.startswith("torch") for line in facts.requirements)
    assert facts.interfaces["lo"]
    assert facts.temporary.free_gib > 0
    assert facts.variables == {"https_proxy": "http://p:1"}


def test_a_folder_that_is_not_there_yet(tmp_path):
    folder = folder_of(tmp_path / "not" / "yet")
    assert folder.writable
    assert folder.path.endswith("not/yet")
    assert folder.free_gib > 0


def test_adapters_have_states(tmp_path):
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    (tmp_path / "mlx5_2").mkdir()
    assert _adapters(tmp_path) == {"mlx5_0": "ACTIVE", "mlx5_1": "DOWN", "mlx5_2": "unknown"}
    assert _adapters(tmp_path / "none") == {}


def test_a_lock(tmp_path):
    lock = tmp_path / "cpu.txt"
    lock.write_text("# made\ntorch==2.13.0 \\\n    --hash=sha256:1==2\nray==2.58.0 ; python_version < '4'\n")
    assert _locked(lock) == {"torch": "2.13.0", "ray": "2.58.0"}
    assert _locked(tmp_path / "none") == {}
