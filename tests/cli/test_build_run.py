"""zoo.build: the recipes of the command line as Python objects."""

import re
from pathlib import Path

import pytest
import torch

import zoo
from tests.harness import REPOSITORY
from zoo.common.locks import is_locked, lock_folder
from zoo.runs import run_folder

pytestmark = pytest.mark.usefixtures("working_folder")
GUIDE = REPOSITORY / "docs" / "python.md"
SYSTEMS = [f"{system}/smoke" for system in ("hifigan", "audiosr", "flow", "compressed_ad", "ci_llm")]
SYSTEMS.append("miipher/smoke_adapter")


def test_builds_trains_and_loads(tmp_path: Path) -> None:
    short = ["data.batch_size=4", "--trainer.max_steps=2", "trainer.limit_val_batches=0"]
    short.append("trainer.default_root_dir=run")
    task, data, trainer = zoo.build("flow/smoke", short)
    assert (type(task), data.batch_size, trainer.max_steps) == (zoo.flow.FlowTask, 4, 2)
    with lock_folder(tmp_path / "run", "fit"), pytest.raises(ValueError, match="is being written by"):
        trainer.fit(task, data)
    trainer.fit(task, data)
    assert (tmp_path / "run" / "config.yaml").is_file() and not is_locked(tmp_path / "run")
    model = zoo.load("run")
    assert re.fullmatch(r"zoo\.flow\.Sampler\(net=\w+ \([\d,]+ parameters\), device=cpu\)", repr(model)), repr(model)
    again, _, _ = zoo.build("flow/smoke", ["init_from=run", "trainer.default_root_dir=other"])
    assert all(torch.equal(*pair) for pair in zip(task.parameters(), again.parameters(), strict=True))


def test_runs_named_within_a_second_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20260101-000000")
    assert len({run_folder.new_run_folder("a/b") for _ in range(3)}) == 3


def test_null_replaces_an_object_of_a_group() -> None:
    _, data, _ = zoo.build("miipher/smoke_adapter", ["data.degradation.degrader=null"])
    assert data.degrader is None


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("flow/smoek", "data.batch_size=8", "did you mean flow/smoke"),
        ("flow/smoke", "data.batch_sise=8", "did you mean batch_size"),
        ("flow/smoke", "ckpt_path=nowhere", "nowhere"),
    ],
)
def test_refuses_like_the_command_line(recipe: str, override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        zoo.build(recipe, [override])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", SYSTEMS)
def test_batch_keys_stand_in_the_guide(recipe: str) -> None:
    _, data, _ = zoo.build(recipe, ["data.num_workers=0"])
    data.prepare_data()
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    row = re.search(rf"^\| `{recipe}`.*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    keys = re.findall(r"`(\w+)` \(", row[0]) if row else []
    assert {*batch} == {*keys}, {key: getattr(value, "shape", value) for key, value in batch.items()}
