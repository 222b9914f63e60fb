"""`zoo inspect` on descriptions that make no sense: a report or one line, never a traceback."""

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from zoo.cli.main import main
from zoo.runs.checkpoints import save_checkpoint

RECORD = {"sha256": "0" * 64, "source": "someone/model", "revision": "main", "folder": "frozen/0000000000000000"}
CHECKPOINT: dict[str, Any] = {
    "zoo": {
        "version": "0.1.0",
        "task": "zoo.hifigan.HiFiGANTask",
        "inference": "x",
        "components": {"net": {}},
        "options": {},
    },
    "epoch": 2,
    "global_step": 40,
    "state_dict": {"generator.a": torch.ones(3, 4), "mpd.c": torch.ones(5).half()},
    "ema": {"shadow": {"generator.a": torch.ones(3, 4)}, "updates": 39},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(14)}}}],
    "frozen": {"net.backbone": RECORD, "net.other": {**RECORD, "folder": None}},
}
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "generator.a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
    "generator.b": {"dtype": "F16", "shape": [], "data_offsets": [48, 50]},
}
EXPORT: dict[str, Any] = {
    "zoo": "0.1.0", "format": 1, "task": "zoo.hifigan.HiFiGANTask", "inference": "zoo.hifigan.Vocoder", "options": {},
    "components": {"generator": {"class_path": "zoo.hifigan.Generator", "init_args": {}}}, "fused": ["generator"],
    "source": "runs/a/step_00000040.ckpt", "step": 40, "frozen": {"net.backbone": RECORD},
}  # fmt: skip
ODD = [
    None, True, 3, -1, 2**70, 1e308, math.nan, "", "x", "\x1b[31m", "two\nlines", "\ud800", "a\0b", "../" * 9,
    "9" * 5000, [], {}, [[]], [None], {"": None}, {"a": {"b": [1]}},
]  # fmt: skip


ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someone/model", "revision": None, "r": 2,
    "lora_alpha": 4, "lora_dropout": 0.1, "target_modules": ["q_proj"], "layers_to_transform": [0], "bias": "none",
    "layers_pattern": "layers", "rank_pattern": {}, "alpha_pattern": {"q_proj": 8}, "use_rslora": False,
    "auto_mapping": None, "megatron_core": "megatron.core", "init_lora_weights": True, "exclude_modules": None,
}  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(content: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy in which one to three values are gone, odd, or stand under another key."""
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        *path, key = rng.choice(list(places(content)))
        node: Any = content
        for each in path:
            node = node[each]
        kind = rng.randrange(4)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[rng.choice(["", "zoo", "a.b", "\x1b[0m", "frozen"])] = node.pop(key)
        else:
            node[key] = copy.deepcopy(rng.choice(ODD))
        if not content:
            break
    return content


def inspect(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command said; fails on a traceback, on several lines of error, and on what a terminal would obey."""
    code = main(["inspect", str(path)])
    out, error = capsys.readouterr()
    assert code in (0, 1) and "Traceback" not in error + out, (code, error, out)
    assert len(error.splitlines()) <= 1 and (out or error), error
    assert "\x1b" not in out + error
    return out + error


def write_header(path: Path, header: Any, size: int = 50) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


@pytest.mark.parametrize(
    "content",
    [{"zoo": {}}, {**CHECKPOINT, "frozen": 3}, {**CHECKPOINT, "frozen": {"net": 3}}, {"zoo": {}, "state_dict": 3},
     {**CHECKPOINT, "frozen": {"net": {"sha256": 3}}}, {**CHECKPOINT, "optimizer_states": 3}, {"zoo": 3}, {}],
)  # fmt: skip
def test_description_of_a_checkpoint(content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(content, tmp_path / "step_00000001.ckpt")
    inspect(tmp_path / "step_00000001.ckpt", capsys)
    inspect(tmp_path, capsys)


@pytest.mark.parametrize(
    "header",
    [{"a": 1}, {"a": {}}, [], 3, None, {"__metadata__": 3}, b"\xff\xfe", b"[" * 9000, b"",
     {"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}},
     {"a": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}},
     {"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}},
     {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
     {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}},
     {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}],
)  # fmt: skip
def test_header_is_named_unreadable(header: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_header(tmp_path / "a.safetensors", header)
    assert main(["inspect", str(tmp_path / "a.safetensors")]) == 1
    assert "valid  NO" in capsys.readouterr().out
    inspect(tmp_path, capsys)


def test_mutated_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    for number in range(200):
        content = mutated(CHECKPOINT, rng)
        path = tmp_path / f"{number}.pt"
        torch.save(content, path)
        inspect(path, capsys)


def test_mutated_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    for number in range(150):
        header, config = (mutated(each, rng) if rng.random() < 0.7 else each for each in (HEADER, EXPORT))
        text = json.dumps(config)
        if number % 10 == 0:
            text = text[: rng.randrange(len(text))]
        raw = bytearray(json.dumps(header).encode())
        if number % 7 == 0:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        (tmp_path / "config.json").write_text(text)
        write_header(tmp_path / "model.safetensors", bytes(raw), rng.choice([50, 50, 0, 49]))
        inspect(tmp_path, capsys)
        inspect(tmp_path / "model.safetensors", capsys)


def test_mutated_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{layer}.lora_A.weight": torch.ones(2, 8), f"{layer}.lora_B.weight": torch.ones(8, 2)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    assert "ci_llm" in inspect(tmp_path, capsys)
    for _ in range(200):
        (tmp_path / "adapter_config.json").write_text(json.dumps(mutated(ADAPTER, rng)))
        inspect(tmp_path, capsys)
