"""Own data and fine-tuning of each system, typed as a stranger would, in an empty folder outside of a checkout."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.harness import forked, good

SHORT = "--trainer.max_steps 2 --trainer.val_check_interval 2"
PAIRS = "--data.root pairs/train/clean --data.degraded pairs/train/degraded"
LAKES = """{class_path: zoo.compressed_ad.GymnasiumEnv, init_args: {id: FrozenLake-v1, limit: 12, tasks: [
    {desc: [SFF, FHF, FFG]}, {desc: [SFH, FFF, HFG]}, {desc: [SFF, HFF, FFG]}, {desc: [SHF, FFF, FFG]}]}}"""
HISTORIES = f"--data.root lakes --data.env '{LAKES}' --data.demonstrator null --data.length 40 --model.policy.head null"
# system -> commands on own data, then those that fine-tune what came out
COMMANDS = {
    "hifigan": (
        ["zoo fit hifigan/smoke --data.root wavs --trainer.default_root_dir first"],
        ["zoo convert hifigan first original", "zoo fit hifigan/smoke --init_from original --data.root wavs"],
    ),
    "miipher": (
        [
            "zoo degrade wavs pairs --copies 1",
            f"zoo fit miipher/smoke_adapter {PAIRS} --trainer.default_root_dir first",
        ],
        [f"zoo fit miipher/smoke_finetune --init_from first {PAIRS}"],
    ),
    "audiosr": (
        ["zoo fit audiosr/smoke_vae --data.root wavs --trainer.default_root_dir first"],
        ["zoo fit audiosr/smoke_vae --init_from first --data.root wavs --model.optimizer_g.lr 1e-4"],
    ),
    "flow": (
        ["zoo fit flow/smoke --data.root pics --model.net.num_classes 3 --trainer.default_root_dir first"],
        [
            "zoo export first exported",
            "zoo fit flow/smoke --init_from exported --data.root pics --model.net.num_classes 3",
        ],
    ),
    "compressed_ad": (
        [
            f"zoo collect lakes --env '{LAKES}' --algorithm q_learning --steps 60 --streams 4 --train_share 0.75",
            f"zoo fit compressed_ad/smoke_spaces {HISTORIES} --trainer.default_root_dir first",
        ],
        [f"zoo fit compressed_ad/smoke_spaces --init_from first {HISTORIES}"],
    ),
    "ci_llm": (
        ["zoo fit ci_llm/smoke --data.root qa.jsonl --trainer.default_root_dir first"],
        ["zoo fit ci_llm/smoke --init_from first/final_checkpoint --data.root qa.jsonl"],
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "wavs" / f"speaker{number % 2}" / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        tone = 0.3 * np.sin(np.arange(33075) * 2 * np.pi * (200 + 40 * number) / 22050)
        soundfile.write(path, tone + generator.normal(0, 0.02, tone.size), 22050)
    for name in ("cat", "dog", "fox"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pics" / name / f"{number}.jpg")
    rows = [json.dumps({"question": f"What is {n} plus {n + 1}?", "answer": str(2 * n + 1)}) for n in range(100)]
    (tmp_path / "qa.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.parametrize("system", COMMANDS)
def test_own_data_and_fine_tuning(system: str, folder: Path) -> None:
    train, tune = COMMANDS[system]
    for command in [*train, *tune]:
        _, *words = shlex.split(f"{command} {SHORT}" if command.startswith("zoo fit") else command)
        result = good(forked(*words, cwd=folder, HOME=str(folder), PYTHONPATH=""))
        if command.startswith("zoo fit"):
            assert "items to train on" in result.stderr and "fit finished at step 2" in result.stderr
            assert "next            zoo " in result.stderr
