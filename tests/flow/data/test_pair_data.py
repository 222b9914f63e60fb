from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.flow.pair_files import write_pairs
from zoo.flow import PairData, WithinClassTransport
from zoo.flow.process.sampling import noise


def pairs(folder: Path, **options: float) -> PairData:
    data = PairData(str(folder), **options)
    data.setup("fit")
    return data


def test_seeds_of_the_task_change_with_the_epoch_and_the_pair_stays(tmp_path: Path) -> None:
    data = pairs(write_pairs(tmp_path, (2,), 3), val_share=0.2)
    first, second, held_out = data.train_set[0, 5], data.train_set[1, 5], data.val_set[5]
    assert len({first["seed"], second["seed"], held_out["seed"]}) == 3
    assert torch.equal(first["x0"], second["x0"]) and torch.equal(first["x1"], second["x1"])
    assert not torch.equal(noise([first["seed"]], (2,))[0], first["x0"])
    assert data.val_set[5]["seed"] == held_out["seed"]
    batch = data.collate([first, second])
    assert batch["seeds"] == [first["seed"], second["seed"]] and torch.equal(batch["x1"][1], second["x1"])
    assert (data.classes, [data.train_set[i]["label"] for i in range(4)]) == (["1", "2", "3"], [1, 2, 3, 1])


def test_pairs_written_anew_in_the_same_folder_are_read(tmp_path: Path) -> None:
    write_pairs(tmp_path, (2,))
    before = pairs(tmp_path).train_set[0, 0]["x1"].clone()
    rows = np.load(tmp_path / "pairs-00000.npy")
    rows["x1"] += 1
    (tmp_path / "pairs-00000.npy").unlink()
    np.save(tmp_path / "pairs-00000.npy", rows)
    assert torch.allclose(pairs(tmp_path).train_set[0, 0]["x1"], before + 1)


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
