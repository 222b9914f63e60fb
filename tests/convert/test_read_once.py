"""How often `zoo inspect` and `zoo convert` read the file of an original, and what they make of a damaged one."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import REPOSITORY
from zoo.cli.main import main
from zoo.flow.nets.mlp import ToyNet

GOLDEN = REPOSITORY / "tests" / "golden"
ORIGINALS = {
    "hifigan": "hifigan/g_00000123",
    "compressed_ad": "compressed_ad/ad_ckpt-0.pt",
    "flow": "flow/cfg_fmsave.ckpt",
    "miipher": "miipher/hubert_postln/checkpoint_199k.pt",
    "audiosr": "audiosr/set_a/step_7.pt",
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


def find_original(system: str, shared: Path | None) -> Path:
    path = GOLDEN / ORIGINALS[system]
    return path if path.is_file() or shared is None else shared / "golden" / ORIGINALS[system]


@pytest.mark.parametrize("system", ["hifigan", "compressed_ad"])
def test_original_is_read_once(system: str, reads: Counter[str], tmp_path: Path, capsys) -> None:
    check(find_original(system, None), system, reads, tmp_path, capsys)


@pytest.mark.shared
@pytest.mark.parametrize("system", ["flow", "miipher", "audiosr"])
def test_shared_original_is_read_once(system: str, shared: Path, reads: Counter[str], tmp_path: Path, capsys) -> None:
    check(find_original(system, shared), system, reads, tmp_path, capsys)


def check(path: Path, system: str, reads: Counter[str], tmp_path: Path, capsys) -> None:
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
