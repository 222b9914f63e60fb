"""Which tensors of two files differ."""

import json
from pathlib import Path

import pytest
import torch

from zoo.audiosr.evaluation.compare import compare, compare_files, read_tensors, summary
from zoo.runs.checkpoints import save_checkpoint


def test_findings_by_component(tmp_path: Path) -> None:
    ones = {"net.unet.out.weight": torch.ones(4), "net.unet.out.bias": torch.zeros(2), "net.time.weight": torch.ones(2)}
    other = {**ones, "net.unet.out.weight": torch.tensor([1.0, 1.0, 1.0, 3.0]), "net.extra.weight": torch.ones(1)}
    other["net.time.weight"] = torch.ones(3)
    save_checkpoint({"state_dict": ones, "ema": {"shadow": {"net.time.weight": torch.ones(3)}}}, tmp_path / "a.ckpt")
    torch.save({"state_dict": {f"_orig_mod.module.{name}": value for name, value in other.items()}}, tmp_path / "b.pt")
    found = compare(tmp_path / "a.ckpt", tmp_path / "b.pt")
    assert found["net.unet"].equal == 1
    (difference,) = found["net.unet"].different
    assert (difference.name, difference.largest, difference.relative) == ("net.unet.out.weight", 2.0, 1.0)
    assert found["net.extra"].only_second == ["net.extra.weight"]
    assert found["net.time"].other_shape == ["net.time.weight (2,) against (3,)"]
    assert "net.unet.out.weight" in summary(found)
    assert compare(tmp_path / "a.ckpt", tmp_path / "b.pt", tolerance=2.0, depth=1)["net"].equal == 2
    assert compare(tmp_path / "a.ckpt", tmp_path / "b.pt", ema=True)["net.time"].equal == 1


def test_not_a_number_differs_from_numbers_only(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    torch.save({"w.a": odd}, tmp_path / "a.pt")
    torch.save({"w.a": odd.clone()}, tmp_path / "b.pt")
    torch.save({"w.a": torch.ones(3)}, tmp_path / "c.pt")
    assert compare(tmp_path / "a.pt", tmp_path / "b.pt")["w"].equal == 1
    found = compare(tmp_path / "a.pt", tmp_path / "c.pt")
    assert found["w"].different[0].largest == float("inf")
    compare_files(tmp_path / "a.pt", tmp_path / "c.pt", output=tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["w"]["different"][0]["largest"] is None


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    torch.save({"b": torch.ones(1)}, tmp_path / "b.pt")
    torch.save({"b": 1}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match="share no tensor"):
        compare(tmp_path / "a.pt", tmp_path / "b.pt")
    with pytest.raises(ValueError, match="no tensors"):
        read_tensors(tmp_path / "empty.pt")
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "absent.pt")
