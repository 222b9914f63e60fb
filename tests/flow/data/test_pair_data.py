from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.flow.pair_files import write_pairs
from zoo.flow import ConditionalOT, FlowTask, PairData, ToyNet, UniformTimes, WithinClassTransport
from zoo.flow.process.sampling import noise


def pairs(folder: Path, **options: float) -> PairData:
    data = PairData(str(folder), **options)
    data.setup("fit")
    return data


def test_validation_loss_is_the_straightness_on_pairs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = pairs(write_pairs(tmp_path, (2,)), val_share=0.2)
    batch = data.collate([data.val_set[i] for i in range(8)])
    task = FlowTask(ToyNet(widths=(8,)), ConditionalOT(0.0), UniformTimes(), torch.optim.Adam, label_drop=0).eval()
    chord, expected = batch["x1"] - batch["x0"], 0.0
    with torch.no_grad():
        result = float(task.evaluate(batch, 0, "val")[0]["loss"])
        for t in (torch.arange(10) + 0.5) / 10:
            expected += float((chord - task.net(batch["x0"] + t * chord, t)).square().sum(dim=1).mean()) / 10
    assert result * 2 == pytest.approx(expected, rel=1e-4)  # per element, of which there are two


def test_seeds_of_the_task_change_with_the_epoch_and_the_pair_stays(tmp_path: Path) -> None:
    data = pairs(write_pairs(tmp_path, (2,), 3), val_share=0.2)
    first, second, held_out = data.train_set[0, 5], data.train_set[1, 5], data.val_set[5]
    assert len({first["seed"], second["seed"], held_out["seed"]}) == 3
    assert torch.equal(first["x0"], second["x0"]) and torch.equal(first["x1"], second["x1"])
    assert not torch.equal(noise([first["seed"]], (2,))[0], first["x0"])
    assert data.val_set[5]["seed"] == held_out["seed"]
    assert (data.classes, [data.train_set[i]["label"] for i in range(4)]) == (["1", "2", "3"], [1, 2, 3, 1])


def test_a_resume_notices_other_pairs(tmp_path: Path) -> None:
    made = [{"seed": 1, "run": "a"}, {"seed": 1, "run": "moved"}, {"seed": 2, "run": "a"}]
    first, same, other = (pairs(write_pairs(tmp_path, (2,), **each)).file_facts for each in made)
    assert first == same != other


def test_what_is_wrong_with_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no meta.json"):
        pairs(tmp_path)
    write_pairs(tmp_path, (2,))
    with pytest.raises(ValueError, match="leave none for training"):
        pairs(tmp_path, val_share=0.996)
    data = pairs(tmp_path)
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(coupling=WithinClassTransport()))
    with pytest.raises(ValueError, match=r"model.coupling would"):
        data.setup("fit")
    shard, meta = tmp_path / "pairs-00000.npy", tmp_path / "meta.json"
    other = np.load(shard)
    other["x0_start"][5] += 0.1
    for write, message in [
        (lambda: shard.write_bytes(shard.read_bytes()[:-8]), "is corrupt"),
        (lambda: np.save(shard, np.zeros(4)), "expected rows of"),
        (lambda: np.save(shard, other), "another noise for seed"),
        (shard.unlink, "1 array files are missing"),
    ]:
        write()
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            pairs(tmp_path).train_set[0, 5]
    for text, message in [("{", "no JSON"), ("{}", "expected the keys count")]:
        meta.write_text(text)
        with pytest.raises(ValueError, match=message):
            pairs(tmp_path)
