import socket
import subprocess
import sys
import types

import pytest

from zoo.cli.commands import doctor
from zoo.cli.main import main


def rows(capsys):
    return capsys.readouterr().out


def test_reports_this_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor", "--root", str(tmp_path)]) == 0
    out = rows(capsys)
    for subject in ("python", "torchaudio", "lightning", "cpu", "libsndfile", "extra [export]", "disk", "port", "hub"):
        assert subject in out
    assert "FAILED" not in out
    assert "everything essential works" in out


def test_versions_must_match(monkeypatch):
    versions = {name: "1.0" for name in doctor.VERSIONS} | {"torch": "2.11.0", "torchaudio": "2.10.1"}
    monkeypatch.setattr(doctor.importlib.metadata, "version", versions.__getitem__)
    checks = {check.subject: check for check in doctor.version_checks()}
    assert checks["torchaudio"].status == "FAILED"
    assert "torch is 2.11.0" in checks["torchaudio"].detail
    versions["torchaudio"] = "2.11.4+cpu"
    assert {check.status for check in doctor.version_checks()} == {"ok"}


def test_a_missing_package_fails_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "VERSIONS", ["torch", "no-such-package"])
    assert doctor.main(root=tmp_path) == 1
    assert "failed: no-such-package" in rows(capsys)


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check = doctor.port_check(port)
        assert check.status == "warning"
        assert "MASTER_PORT" in check.detail
    with pytest.raises(ValueError, match="1 to 65535"):
        doctor.port_check(0)


def test_disk(tmp_path, monkeypatch):
    assert doctor.disk_check(tmp_path / "not" / "there").detail.endswith(f"{tmp_path / 'not' / 'there'}")
    file = tmp_path / "file"
    file.touch()
    assert doctor.disk_check(file).status == "FAILED"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=2**20))
    assert doctor.disk_check(tmp_path).status == "warning"


def test_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert doctor.hub_check().detail.startswith("offline")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert doctor.hub_check().detail.startswith("online")


def test_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    recipe = tmp_path / "r.yaml"
    with pytest.raises(FileNotFoundError, match=r"r\.yaml"):
        doctor.main(config=recipe)
    recipe.touch()
    results = [("build, one step, save", True, "ok"), ("load", False, "no [checkpoint]")]
    stand_in = types.SimpleNamespace(dry_run=lambda config: results)
    monkeypatch.setitem(sys.modules, "zoo.cli.trainer", stand_in)
    assert doctor.main(config=recipe, root=tmp_path) == 1
    out = rows(capsys)
    assert "no [checkpoint]" in out
    assert "failed: recipe: load" in out


def test_help_does_not_import_torch():
    code = "import sys; from zoo.cli.main import main; main(['doctor', '--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--config" in done.stdout


@pytest.mark.gpu
def test_gpu_computes():
    subjects = {check.subject: check.status for check in doctor.device_checks()}
    assert subjects["cuda:0"] == "ok"
