"""Runs of all systems go to a hub and come back; what is wrong with a hub is said in one line."""

from pathlib import Path

import pytest
import torch
import yaml

from tests.runs.hub.hub_server import Hub
from zoo.cli.main import main
from zoo.runs.load import load

ONE_STEP = ("--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0")
SYSTEMS = {
    "flow/smoke": "net", "hifigan/smoke": "generator", "compressed_ad/smoke": "policy", "ci_llm/smoke": "crowd",
    "miipher/smoke_adapter": "cleaner", "audiosr/smoke": "net",
}  # fmt: skip


def fit(recipe: str, folder: Path, *more: str) -> Path:
    assert main(["fit", recipe, *ONE_STEP, f"--trainer.default_root_dir={folder}", *more]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fit("flow/smoke", tmp_path_factory.mktemp("run") / "digits", "--trainer.val_check_interval=1")
    evaluation = folder / "evaluation"
    evaluation.mkdir()
    rows = "system,figure,value,low,high\ngenerated,frechet,1.5,1.25,1.75\ngenerated,recall,0.5,,\n"
    (evaluation / "evaluation.csv").write_text(rows)
    return folder


def error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    return line


@pytest.mark.parametrize("recipe", SYSTEMS)
def test_every_system_goes_and_comes_back(recipe: str, online: Hub, tmp_path: Path) -> None:
    folder = fit(recipe, tmp_path / "run", "--trainer.val_check_interval=1")
    assert main(["push", str(folder), "me/model"]) == 0
    own, theirs = load(folder), load("hf://me/model")
    assert type(own) is type(theirs)
    for name, part in load(tmp_path / "run").parts().items():
        if hasattr(part, "fuse_"):
            part.fuse_()  # type: ignore[operator]
        given, taken = part.state_dict(), theirs.parts()[name].state_dict()
        assert given.keys() == taken.keys()
        assert all(torch.equal(given[key], taken[key]) for key in given)
    assert theirs.dry_run()
    begun = fit(recipe, tmp_path / "begun", "--init_from=hf://me/model", "--init_from_min_matched=0.5")
    commit = online.repos["me/model"].branches["main"]
    assert yaml.safe_load((begun / "config.yaml").read_text())["init_from"] == f"hf://me/model@{commit}"
