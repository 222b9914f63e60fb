from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from scripts.evidence import compressed_ad as evidence
from scripts.evidence.compressed_ad import measure_chain, measure_demo, measure_demo_9x9, measure_lakes, measure_memory
from tests.harness import REPOSITORY
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect, recipe_env
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.nets.compression import Compressor, Forget, QueryCompressor
from zoo.compressed_ad.nets.embedding import FactoredEmbedding, SpaceEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.transformer import Transformer
from zoo.runs.export import write_export
from zoo.runs.run_folder import CONFIG_NAME

PARTS = "zoo.compressed_ad"
CONTROLS = ("shuffled", "mixed")
SIZES = {"dim": 8, "depth": 1, "heads": 2}
COMPRESSORS: dict[str, tuple[Compressor | None, dict[str, Any] | None]] = {
    "latents": (QueryCompressor(8, 3, 1, 2), {"num_latents": 3, **SIZES}),
    "none": (Forget(), {}),
    "sliding": (None, None),
}


def make_run(
    folder: Path, kind: str = "sliding", env: Env = evidence.SMALL, window: int = 12, seed: int = 0, **data: Any
) -> Path:
    """An untrained policy, with the config of a training."""
    torch.manual_seed(seed)
    compressor, arguments = COMPRESSORS[kind]
    described = {"class_path": f"{PARTS}.{type(env).__name__}", "init_args": env.arguments()}
    available = {"grid_size": env.grid_size} if isinstance(env, Darkroom) else {"env": env}
    embedding = FactoredEmbedding if isinstance(env, Darkroom) else SpaceEmbedding
    net = InContextPolicy(embedding(dim=8, **available), Transformer(8, 1, 2, window), compressor)
    name = f"{PARTS}.{type(compressor).__name__}"
    policy = {
        "embedding": {
            "class_path": f"{PARTS}.{embedding.__name__}",
            "init_args": {"dim": 8, **({"env": described} if "env" in available else available)},
        },
        "transformer": {"class_path": f"{PARTS}.Transformer", "init_args": {**SIZES, "context": window}},
        "compressor": None if compressor is None else {"class_path": name, "init_args": arguments},
    }
    parts = {"policy": {"class_path": f"{PARTS}.InContextPolicy", "init_args": policy}, "env": described}
    specs = {"inference": f"{PARTS}.Agent", "components": parts, "options": {"episodes": 4}}
    write_export(folder, specs, {"policy": net}, "test")
    demonstrator = {
        "class_path": f"{PARTS}.EpsilonCurriculum",
        "init_args": {"env": described, "episodes": 4, "best": 1.0, "greedy_after": 0.9},
    }
    windows = {key: data.pop(key, False) for key in ("shuffle_episodes", "mix_tasks")}
    usual = {"root": None, "demonstrator": demonstrator, "windows": windows, "split_seed": 0, "train_share": 0.8}
    (folder / CONFIG_NAME).write_text(yaml.safe_dump({"data": {"init_args": {**usual, **data}}}))
    return folder


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SEEDS", 3)
    monkeypatch.setattr(evidence, "MANY", 4)


def test_the_demo_is_compared_with_its_controls(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    controls = {name: make_run(tmp_path / name, shuffle_episodes=True, mix_tasks=name == "mixed") for name in CONTROLS}
    figures = measure_demo(run, **controls)
    assert figures["last episode"] < 5 and figures["oracle actions"] > 8 > 1 > figures["random actions"]
    assert {f"{label}: last episode to the first" for label in (evidence.SHUFFLED, evidence.MIXED)} < figures.keys()
    with pytest.raises(ValueError, match="shuffle_episodes is False, expected True here"):
        measure_demo(run, run, controls["mixed"])
    with pytest.raises(ValueError, match="mix_tasks is True, expected False here"):
        measure_demo(run, controls["mixed"], controls["mixed"])
    with pytest.raises(ValueError, match=r"was trained in .* expected .*'grid_size': 9"):
        measure_demo_9x9(run)
    (run / CONFIG_NAME).write_text("data: {init_args: {items: 3}}")
    with pytest.raises(ValueError, match="was not trained on histories"):
        measure_demo(run, **controls)


def test_the_large_demo_is_compared_with_its_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Darkroom(4, 6)
    monkeypatch.setattr(evidence, "LARGE", env)
    figures = measure_demo_9x9(make_run(tmp_path / "run", env=env))
    last = EpsilonCurriculum(env, 4).histories(env.tasks()[:1], [0]).rewards[0, -env.horizon :].sum()
    assert figures["first episode"] < figures["histories learned from, last episode"] <= last + env.horizon


def test_memory_is_compared_arm_by_arm(tmp_path: Path) -> None:
    arms = {kind: make_run(tmp_path / kind, kind) for kind in COMPRESSORS}
    figures = measure_memory(**arms)
    assert {f"latents, {title}" for title in ("last episode", "after the gap")} < figures.keys()
    with pytest.raises(ValueError, match="has none, expected latents"):
        measure_memory(arms["none"], arms["none"], arms["sliding"])
    with pytest.raises(ValueError, match="has a window of 14"):
        measure_memory(arms["latents"], make_run(tmp_path / "wide", "none", window=14), arms["sliding"])
    with pytest.raises(ValueError, match="hold out other goals"):
        measure_memory(arms["latents"], make_run(tmp_path / "other", "none", split_seed=1), arms["sliding"])


def test_the_chain_is_compared_arm_by_arm(tmp_path: Path) -> None:
    histories = tmp_path / "histories"
    collect(
        evidence.SMALL,
        histories,
        EpsilonAlgorithm(),
        episodes=4,
        streams=2,
        split_seed=0,
        train_share=0.8,
        progress=False,
    )
    root = str(histories)
    cad = make_run(tmp_path / "cad", "latents", root=root)
    scratch, ad = make_run(tmp_path / "scratch", "latents", seed=1, root=root), make_run(tmp_path / "ad", root=root)
    with pytest.raises(ValueError, match="init_from is None, which is not CAD"):
        measure_chain(cad, scratch, ad)
    config = cad / CONFIG_NAME
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "init_from": "runs/pretrain"}))
    figures = measure_chain(cad, scratch, ad)
    assert {f"{arm}, all episodes" for arm in (evidence.CAD, evidence.SCRATCH, evidence.AD)} < figures.keys()
    assert figures["histories learned from, last episode"] > 6  # the demonstrator knows the goals
    with pytest.raises(ValueError, match="has sliding window, expected latents"):
        measure_chain(cad, ad, ad)
    with pytest.raises(ValueError, match="learned from different histories"):
        measure_chain(cad, make_run(tmp_path / "other", "latents"), ad)


def test_the_lakes_are_compared_with_what_they_learned_from(tmp_path: Path) -> None:
    env = recipe_env(REPOSITORY / "configs/compressed_ad/demo_lakes.yaml")
    histories = tmp_path / "histories"
    learner = QLearning(epsilon=0.0, last_epsilon=0.0, rate=1.0, bonus=0.02)
    collect(env, histories, learner, steps=80, streams=1, train_share=0.8, progress=False)
    runs = {
        mix: make_run(tmp_path / str(mix), env=env, root=str(histories), mix_tasks=mix, shuffle_episodes=mix)
        for mix in (False, True)
    }
    figures = measure_lakes(runs[False], runs[True])
    assert figures["oracle actions"] == 1.0 and figures["last episode, share of the way"] < 0.7
    assert figures[f"{evidence.MIXED}: last episode above the first, share of the way"] < 0.1
    assert figures["histories learned from, last episode"] >= figures["histories learned from, first episode"]
    with pytest.raises(ValueError, match="shuffle_episodes is True, expected False here"):
        measure_lakes(runs[True], runs[True])
