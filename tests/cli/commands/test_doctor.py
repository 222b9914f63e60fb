import pytest

from zoo.cli.commands import doctor
from zoo.cli.main import main


def test_machine_is_reported(tmp_path, capsys):
    assert main(["doctor", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for subject in ("python", "torchaudio", "lightning", "cpu", "libsndfile", "extra [export]", "distributed", "disk"):
        assert subject in out
    assert "FAILED" not in out


@pytest.mark.parametrize(
    ("options", "is_good"), [("", True), ("model: {init_args: {net: {init_args: {x: 1}}}}", False)]
)
def test_recipe_is_tried(options, is_good, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"extends: flow/smoke\n{options}")
    assert main(["doctor", str(recipe), "--root", str(tmp_path)]) == int(not is_good)
    out = capsys.readouterr().out
    assert ("recipe: predict" in out) == is_good and ("failed: recipe: build" in out) != is_good
    assert main(["doctor", "flow/smok"]) == 2
    assert main(["doctor", "--data.batch_size", "7"]) == 2


@pytest.mark.gpu
def test_gpu_computes():
    subjects = {check.subject: check.status for check in doctor.check_devices()}
    assert subjects["cuda:0"] == "ok"
