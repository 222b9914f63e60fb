"""How often `zoo inspect` and `zoo convert` read the file of an original, and what they make of a damaged one."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import reference_folder
from zoo.cli.main import main
from zoo.flow.nets.mlp import ToyNet

ORIGINALS = {
    "hifigan": "g_00000123",
    "compressed_ad": "ad_ckpt-0.pt",
    "flow": "cfg_fmsave.ckpt",
    "miipher": "hubert_postln/checkpoint_199k.pt",
    "audiosr": "set_a/step_7.pt",
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the files of torch that are read, by name."""
    counts: Counter[str] = Counter()
    load = torch.load

    def count(path: Path, **options: Any) -> object:
        counts[path.name] += 1
        assert options["mmap"]
        return load(path, **options)

    monkeypatch.setattr(torch, "load", count)
    return counts


@pytest.mark.parametrize("system", ORIGINALS)
def test_original_is_read_once(system: str, reads: Counter[str], tmp_path: Path, capsys) -> None:
    path = reference_folder(system) / ORIGINALS[system]
    if not path.is_file():
        pytest.skip("needs ZOO_SHARED")
    assert main(["inspect", str(path)]) == 0
    assert f"original's file, system {system}" in capsys.readouterr().out
    assert reads[path.name] == 1 and max(reads.values()) == 1, reads
    reads.clear()
    assert main(["convert", system, str(path), str(tmp_path / "ours.ckpt")]) == 0, capsys.readouterr().err
    assert reads[path.name] == 1 and max(reads.values()) == 1, reads


def test_damaged_original_is_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "damaged.pt"
    net = ToyNet(2, (64,))
    torch.save({f"network.{key}": value for key, value in net.state_dict().items()}, path)
    data = bytearray(path.read_bytes())
    place = data.find(net.state_dict()["net.0.fc.weight"].numpy().tobytes()[:64])
    data[place] ^= 1
    path.write_bytes(data)
    for args in (["inspect", path], ["convert", "flow", path, tmp_path / "export"]):
        assert main(list(map(str, args))) == 1
        assert "damaged.pt: damaged, the checksum of" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()
