from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from scripts.bench.tools import Finding
from scripts.evidence import compressed_ad as evidence
from scripts.evidence.compressed_ad import gather_chain, gather_demo, gather_demo_9x9, gather_lakes, gather_memory
from tests.harness import REPOSITORY
from zoo.compressed_ad.collecting.collect import Epsilon, collect, env_of
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
    known = {"grid_size": env.grid_size} if isinstance(env, Darkroom) else {"env": env}
    embedding = FactoredEmbedding if isinstance(env, Darkroom) else SpaceEmbedding
    net = InContextPolicy(embedding(dim=8, **known), Transformer(8, 1, 2, window), compressor)
    name = f"{PARTS}.{type(compressor).__name__}"
    policy = {
        "embedding": {
            "class_path": f"{PARTS}.{embedding.__name__}",
            "init_args": {"dim": 8, **({"env": described} if "env" in known else known)},
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
    usual = {"root": None, "demonstrator": demonstrator, "shuffle_episodes": False, "split_seed": 0, "train_share": 0.8}
    (folder / CONFIG_NAME).write_text(yaml.safe_dump({"data": {"init_args": {**usual, **data}}}))
    return folder


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SEEDS", 3)
    monkeypatch.setattr(evidence, "MANY", 4)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    assert len({each.name for each in findings}) == len(findings)
    return {each.name: each for each in findings}


def test_untrained_runs_do_not_pass_as_the_demo(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), seed=seed, split_seed=seed) for seed in (0, 1)]
    control = make_run(tmp_path / "control", shuffle_episodes=True)
    mixed = make_run(tmp_path / "mixed", shuffle_episodes=True, mix_tasks=True)
    found = by_name(gather_demo(runs, [control], [mixed]))
    last, ratio = found["last episode"], found["last episode to the first"]
    assert (last.at_least, ratio.at_least, last.passed, ratio.passed) == (5.0, 4.0, False, False)
    assert found["last episode, the worst run"].value == min(map(float, last.details["runs"].split()))
    for label in (evidence.SHUFFLED, evidence.MIXED):
        assert found[f"{label}: last episode to the first"].at_most == 1.5
    assert found["oracle actions"].value > 8 > 1 > found["random actions"].value
    kept = json.loads((runs[0] / "evidence" / "evidence.json").read_text())
    assert [each["name"] for each in kept["findings"]] == list(found)
    assert [len(kept["curves"][label]) for label in kept["curves"]] == [2, 1, 1]
    assert last.value == pytest.approx(sum(curve[-1] for curve in kept["curves"]["held-out goals"]) / 2)
    assert (runs[0] / "evidence" / "curves.png").stat().st_size > 5000
    assert not (runs[1] / "evidence" / "evidence.json").exists()
    assert by_name(gather_demo(runs)).keys() == {name for name in found if "control" not in name}


def test_runs_of_something_else_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ValueError, match="shuffle_episodes is False, expected True here"):
        gather_demo([run], [run])
    with pytest.raises(ValueError, match="mix_tasks is True, expected False here"):
        gather_demo([run], [make_run(tmp_path / "both", shuffle_episodes=True, mix_tasks=True)])
    with pytest.raises(ValueError, match=r"was trained in .* expected .*'grid_size': 9"):
        gather_demo_9x9([run])
    with pytest.raises(FileNotFoundError):
        gather_demo([tmp_path / "nowhere"])
    (run / CONFIG_NAME).write_text("data: {init_args: {items: 3}}")
    with pytest.raises(ValueError, match="was not trained on histories"):
        gather_demo([run])


def test_the_large_demo_is_drawn_beside_what_it_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Darkroom(4, 6)
    monkeypatch.setattr(evidence, "LARGE", env)
    run = make_run(tmp_path / "run", env=env)
    found = by_name(gather_demo_9x9([run]))
    assert (found["first episode"].at_most, found["last episode"].at_least) == (1.0, 7.0)
    kept = json.loads((run / "evidence" / "evidence.json").read_text())
    source = kept["sources"]["histories learned from"]
    assert len(source) == 4 and source[0] < source[-1] == found["histories learned from, last episode"].value
    last = EpsilonCurriculum(env, 4).histories(env.tasks()[:1], [0]).rewards[0, -env.horizon :].sum()
    assert source[-1] <= last + env.horizon


def test_memory_is_compared_arm_by_arm(tmp_path: Path) -> None:
    arms = {kind: [make_run(tmp_path / kind, kind)] for kind in COMPRESSORS}
    found = by_name(gather_memory(**arms))
    for title, target in (("last episode", 1.5), ("after the gap", 2.0)):
        ratio = found[f"latents to none, {title}"]
        assert ratio.at_least == target
        assert ratio.value == pytest.approx(found[f"latents, {title}"].value / found[f"none, {title}"].value)
        assert found[f"latents to sliding window, {title}"].at_least is None
    assert (arms["latents"][0] / "evidence" / "curves.png").stat().st_size > 5000


def test_arms_that_differ_in_more_than_memory_are_refused(tmp_path: Path) -> None:
    latents, none = make_run(tmp_path / "latents", "latents"), make_run(tmp_path / "none", "none")
    with pytest.raises(ValueError, match="has none, expected latents"):
        gather_memory([none], [none])
    with pytest.raises(ValueError, match="found 1 and 2"):
        gather_memory([latents], [none, none])
    with pytest.raises(ValueError, match=r"has a window of 14, .* one of 12"):
        gather_memory([latents], [make_run(tmp_path / "wide", "none", window=14)])
    with pytest.raises(ValueError, match="hold out other goals"):
        gather_memory([latents], [make_run(tmp_path / "other", "none", split_seed=1)])


def test_the_chain_is_compared_arm_by_arm(tmp_path: Path) -> None:
    histories = tmp_path / "histories"
    collect(evidence.SMALL, histories, Epsilon(), episodes=4, streams=2, split_seed=0, train_share=0.8, progress=False)
    root = str(histories)
    cad = make_run(tmp_path / "cad", "latents", root=root)
    scratch, ad = make_run(tmp_path / "scratch", "latents", seed=1, root=root), make_run(tmp_path / "ad", root=root)
    with pytest.raises(ValueError, match="init_from is None, which is not CAD"):
        gather_chain([cad], [scratch], [ad])
    config = cad / CONFIG_NAME
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "init_from": "runs/pretrain"}))
    found = by_name(gather_chain([cad], [scratch], [ad]))
    for other in (evidence.AD, evidence.SCRATCH):
        for title in ("last episode", "all episodes"):
            ratio = found[f"CAD, {title}"].value / found[f"{other}, {title}"].value
            assert found[f"CAD to {other}, {title}"].value == pytest.approx(ratio)
    assert found["histories learned from, last episode"].value > 6  # the demonstrator knows the goals
    with pytest.raises(ValueError, match="has sliding window, expected latents"):
        gather_chain([cad], [ad], [ad])
    with pytest.raises(ValueError, match="learned from different histories"):
        gather_chain([cad], [make_run(tmp_path / "other", "latents")], [ad])


def test_the_lakes_are_compared_with_what_they_learned_from(tmp_path: Path) -> None:
    env = env_of(REPOSITORY / "configs/compressed_ad/demo_lakes.yaml")
    histories = tmp_path / "histories"
    learner = QLearning(epsilon=0.0, last_epsilon=0.0, rate=1.0, bonus=0.02)
    collect(env, histories, learner, steps=80, streams=1, train_share=0.8, progress=False)
    runs = {
        mix: make_run(tmp_path / str(mix), env=env, root=str(histories), mix_tasks=mix, shuffle_episodes=mix)
        for mix in (False, True)
    }
    found = by_name(gather_lakes([runs[False]], [runs[True]]))
    assert found["oracle actions"].value == 1.0
    assert not found["last episode, share of the way"].passed
    assert found[f"{evidence.MIXED}: last episode above the first, share of the way"].passed
    assert found["histories learned from, last episode"].value >= found["histories learned from, first episode"].value
    with pytest.raises(ValueError, match="mix_tasks is True, expected False here"):
        gather_lakes([runs[True]])


def test_the_script_is_quick_with_few_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    script = REPOSITORY / "scripts" / "evidence" / "compressed_ad.py"
    monkeypatch.setattr(sys, "argv", [str(script), "demo", "--runs", str(run), "--quick"])
    runpy.run_path(str(script), run_name="__main__")
    facts = json.loads((run / "evidence" / "evaluation" / "evaluation.json").read_text())
    assert facts["seeds"] == evidence.FEW
    assert (run / "evidence" / "evidence.json").is_file()


def test_the_script_says_in_one_line_when_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = REPOSITORY / "scripts" / "evidence" / "compressed_ad.py"
    monkeypatch.setattr(sys, "argv", [str(script), "demo", "--runs", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match=r"^error: no run at .*nothing") as raised:
        runpy.run_path(str(script), run_name="__main__")
    assert "\n" not in str(raised.value)
