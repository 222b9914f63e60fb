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
from scripts.evidence.ci_llm import ARMS, COLUMNS, gather, markdown, picture, plan
from tests.ci_llm.crowd_parts import CONFIGS
from tests.harness import REPOSITORY
from zoo.ci_llm.evaluation.controls import spoiled, spoiled_scores
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
    specs = {"inference": "zoo.ci_llm.Writer", "components": {"crowd": described, "tokenizer": tokenizer}}
    write_export(folder, {**specs, "options": {"max_new_tokens": 2}}, {"crowd": crowd}, "test")
    data = {
        "tokenizer": tokenizer,
        "root": None,
        "template": "{prompt}",
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


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.common.reports.write_figure", lambda path, figure: None)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    assert len({each.name for each in findings}) == len(findings)
    return {each.name: each for each in findings}


def test_arms_are_laid_side_by_side(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"demo_{seed}", seed=seed) for seed in (0, 1)]
    baseline = [make_run(tmp_path / "none", weight=0.0)]
    others = [make_run(tmp_path / "other", weight=0.3, strategy="last_token")]
    single = [make_run(tmp_path / "single", weight=0.0, count=1, rank=4)]
    found = by_name(gather(runs, baseline, others, single))
    label = "λ = 0.03, answer_mean"
    ratio = found[f"{label}: NLL, ensemble to the best agent"]
    assert ratio.at_most == 1.0 and found["λ = 0: NLL, ensemble to the best agent"].at_most == 1.0
    assert found["λ = 0.3, last_token: NLL, ensemble to the best agent"].at_most is None
    kept = json.loads((runs[0] / "evidence" / "evidence.json").read_text())
    arms = {arm["label"]: arm for arm in kept["table"]}
    alone = "one agent, rank 4, batch 4, 5 steps"
    assert list(arms) == [label, "λ = 0", "λ = 0.3, last_token", alone]
    arm = arms[label]
    assert arm["run"] == [str(run) for run in runs] and arm["seed"] == [0, 1]
    ratios = [one / other for one, other in zip(arm["nll_ensemble"], arm["nll_best"], strict=True)]
    assert ratio.value == pytest.approx(sum(ratios) / 2)
    assert found[f"{label}: NLL, ensemble to the best agent, the worst run"].value == pytest.approx(max(ratios))
    facts = json.loads((runs[0] / "evidence" / "evaluation" / "evaluation.json").read_text())
    assert arm["nll_fitted"][0] == pytest.approx(facts["likelihood"]["fitted"]["nll_ensemble"])
    assert arms[alone]["pairwise_kl"] == [None]
    against = found[f"λ = 0: NLL, ensemble to {alone}"].value
    assert against == pytest.approx(arms["λ = 0"]["nll_ensemble"][0] / arms[alone]["nll_mean"][0])
    assert found["SWD, λ = 0.3, last_token to λ = 0"].at_least == 1.0
    for seed in (0, 1):
        weights = found[f"seed {seed}, agent 0 spoiled: NLL, fitted weights to equal ones"]
        assert weights.at_most == 1.0
        assert weights.value == pytest.approx(weights.details["NLL fitted"] / weights.details["NLL mean"])
        assert 0 <= weights.details["ECE fitted"] <= 1
    lines = (runs[0] / "evidence" / "evidence.md").read_text().splitlines()
    assert len(lines) == 2 + len(arms) and all(line.count("|") == len(COLUMNS) + 3 for line in lines)
    assert lines[-1].count("| - ") > 3
    assert (runs[0] / "evidence" / "evidence.png").read_bytes().startswith(b"\x89PNG")
    assert not (runs[1] / "evidence" / "evidence.json").exists()


def test_an_agent_is_spoiled_alone_and_mended(tmp_path: Path) -> None:
    agents = Agents(2, 2, 4, init="normal")
    agents.attach(Backbone(config=LLAMA))
    before = {key: value.clone() for key, value in agents.state_dict().items()}
    with spoiled(agents, 1, 2.0, 0):
        changed = agents.state_dict()
        assert all(torch.equal(changed[key][0], before[key][0]) for key in before)
        spread = torch.cat([(changed[key][1] - before[key][1]).flatten() for key in before]).std()
        size = torch.cat([before[key][1].flatten() for key in before]).square().mean().sqrt()
        assert float(spread) == pytest.approx(2 * float(size), rel=0.1)
    assert all(torch.equal(value, before[key]) for key, value in agents.state_dict().items())
    run = make_run(tmp_path / "run")
    sound, noisy = (spoiled_scores(run, noise=noise) for noise in (0.0, 8.0))
    assert noisy["mean"]["nll_agent_0"] != pytest.approx(sound["mean"]["nll_agent_0"], rel=1e-4)
    assert noisy["mean"]["nll_agent_1"] == sound["mean"]["nll_agent_1"]
    assert noisy.keys() == {"mean", "geometric", "dirichlet", "fitted", "bma"}


def test_runs_of_something_else_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"weight 0.03, expected 0 \(baseline\)"):
        gather([run], [run])
    with pytest.raises(ValueError, match=r"has 2 agents of rank 2, expected 1 of rank 4 \(single\)"):
        gather([run], single=[run])
    with pytest.raises(FileNotFoundError, match="no run at"):
        gather([tmp_path / "nowhere"])
    (run / CONFIG_NAME).write_text("model: {init_args: {backbone: 1}}")
    with pytest.raises(ValueError, match="not trained by"):
        gather([run])


def test_the_plan_trains_every_arm_of_every_seed_on_one_backbone(tmp_path: Path) -> None:
    trainings = list(plan(tmp_path, [0, 7]))
    assert [group for group, _, _ in trainings].count("") == 1 and trainings[0][1] == tmp_path / "backbone"
    assert len(trainings) == 1 + 2 * (2 + len(ARMS) + 2)
    assert len({folder for _, folder, _ in trainings}) == len(trainings)
    for group, folder, arguments in trainings[1:]:
        assert f"--trainer.default_root_dir={folder}" in arguments
        assert f"--seed_everything={folder.name.rpartition('_')[2]}" in arguments
        assert ("--model.init_args.crowd.init_args.agents.init_args.count=1" in arguments) == (group == "single")
        assert any(each.endswith(f"source={tmp_path / 'backbone' / 'backbone'}") for each in arguments)


def test_a_table_has_a_dash_where_nothing_is_known() -> None:
    arm = {"label": "x", "run": ["a"], **{key: [1.0] for key in COLUMNS}, "em_vote": [float("nan")]}
    assert markdown([arm]).splitlines()[2].startswith("| x | 1 | 1.000 |") and "| - |" in markdown([arm])


def test_the_script_is_quick_with_two_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    script = REPOSITORY / "scripts" / "evidence" / "ci_llm.py"
    monkeypatch.setattr(sys, "argv", [str(script), "gather", "--runs", str(run), "--quick"])
    runpy.run_path(str(script), run_name="__main__")
    assert len((run / "evidence" / "evaluation" / "items.jsonl").read_text().splitlines()) == 2
    assert (run / "evidence" / "evidence.json").is_file()


def test_the_script_says_in_one_line_when_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = REPOSITORY / "scripts" / "evidence" / "ci_llm.py"
    monkeypatch.setattr(sys, "argv", [str(script), "gather", "--runs", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match=r"^error: no run at .*nothing") as raised:
        runpy.run_path(str(script), run_name="__main__")
    assert "\n" not in str(raised.value)


def test_the_last_table_of_answers_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no media"):
        picture(tmp_path)
    for step, agreement in (("00000010", "0.5"), ("00000020", "1.0")):
        file = tmp_path / "media" / f"step_{step}" / "val_answers.csv"
        file.parent.mkdir(parents=True)
        line = f"How much is 2 + 2?,2 + 2 = 4 #### 4,2 + 2 = 5 #### 5,4,{agreement},2 + 2 = 4 #### 4"
        file.write_text(f"question,agent 0,agent 1,crowd,agreement,right answer\n{line}\n")
    (found,) = picture(tmp_path, tmp_path / "answers.png")
    assert found.value == 1.0 and found.details == {"questions": 1}
    assert (tmp_path / "answers.png").read_bytes().startswith(b"\x89PNG")
