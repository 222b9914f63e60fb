from pathlib import Path

import torch

from zoo.cli.main import main
from zoo.flow.nets.mlp import ToyNet


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
