from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.evidence.ci_llm import CROWD, PLAIN, SINGLES, measure
from tests.ci_llm.crowd_parts import CONFIGS
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.runs.export import write_export
from zoo.runs.run_folder import CONFIG_NAME

LLAMA = {**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": 160}
CORPUS = {"train_items": 8, "val_items": 3, "test_items": 3, "largest": 9}


def spec(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"zoo.ci_llm.{name}", "init_args": arguments}


def make_run(folder: Path, weight: float = 0.03, strategy: str = "answer_mean", seed: int = 0, **agents: Any) -> Path:
    """Untrained agents, with the config of a training."""
    settings = {"count": 2, "rank": 2, "alpha": 4, "init": "normal", "std": 0.1, "dropout": 0.0, "seed": seed, **agents}
    crowd = Crowd(Backbone(config=LLAMA), Agents(**settings))
    described = spec("Crowd", backbone=spec("Backbone", config=LLAMA), agents=spec("Agents", **settings))
    tokenizer = spec("ByteTokenizer")
    specs = {"inference": "zoo.ci_llm.TextGenerator", "components": {"crowd": described, "tokenizer": tokenizer}}
    write_export(folder, {**specs, "options": {"max_new_tokens": 2}}, {"crowd": crowd}, "test")
    data = {
        "tokenizer": tokenizer,
        "root": None,
        "text_format": {"template": "{prompt}"},
        "corpus": spec("Arithmetic", **CORPUS),
    }
    config = {
        "seed_everything": seed,
        "trainer": {"max_steps": 5},
        "model": {
            "init_args": {
                "crowd": described,
                "diversity": spec("Diversity", weight=weight, strategy=strategy, target=None),
            }
        },
        "data": {"init_args": {**data, "batch_size": 4}},
    }
    (folder / CONFIG_NAME).write_text(yaml.safe_dump(config))
    return folder


def test_runs_of_a_seed_are_compared(tmp_path: Path) -> None:
    make_run(tmp_path / f"{CROWD}_7")
    make_run(tmp_path / f"{PLAIN}_7", weight=0.0)
    for name in SINGLES:
        make_run(tmp_path / f"{name}_7", weight=0.0, count=1, rank=4)
    figures = measure(tmp_path, 7, quick=True)
    facts = json.loads((tmp_path / f"{CROWD}_7" / "evidence" / "evaluation" / "evaluation.json").read_text())
    assert figures["ensemble"] == facts["likelihood"]["mean"]["nll_ensemble"] and len(figures) == 4
    with pytest.raises(ValueError, match="has 1 agents, expected several"):
        make_run(tmp_path / "other" / f"{CROWD}_7", count=1)
        measure(tmp_path / "other", 7)
