"""The Trainer commands' parser: how config files join."""

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionConfigFile

from zoo.cli.parsing import limit_names
from zoo.cli.trainer import ZooParser

LLAMA = {"model_type": "llama", "hidden_size": 32, "rope": {"theta": 1.0, "kind": "x"}}


def parsed(folder: Path, *backbones: dict[str, Any]) -> dict[str, Any]:
    limit_names()
    parser = ZooParser()
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("--net.backbone", type=dict[str, Any] | None, default=None)
    for number, backbone in enumerate(backbones):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump({"net": {"backbone": backbone}}))
    files = [f"--config={folder / f'{number}.yaml'}" for number in range(len(backbones))]
    return parser.parse_args(files)["net.backbone"]


def test_mappings_merge_key_by_key(tmp_path: Path) -> None:
    found = parsed(tmp_path, LLAMA, {"hidden_size": 16, "rope": {"theta": 2.0}}, {"layers": 2})
    assert found == {"model_type": "llama", "hidden_size": 16, "rope": {"theta": 2.0, "kind": "x"}, "layers": 2}


def test_another_kind_begins_anew(tmp_path: Path) -> None:
    assert parsed(tmp_path, LLAMA, {"model_type": "gpt2", "n_embd": 8}) == {"model_type": "gpt2", "n_embd": 8}
