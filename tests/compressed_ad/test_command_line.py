"""CompressedAD from the command line: collect, fit, evaluate, report; no test goal is trained on."""

import json
from pathlib import Path

import pytest
import yaml

import zoo
from tests.compressed_ad.envs.scripted import PACKAGE
from tests.harness import REPOSITORY, forked, good
from zoo.compressed_ad import Darkroom, HistoryData
from zoo.compressed_ad.data.windows import WindowOptions
from zoo.compressed_ad.evaluation.evaluate import evaluate

SMOKE = REPOSITORY / "configs" / "compressed_ad" / "smoke.yaml"
ROOM = ("--env", "Darkroom", "--env.grid_size", "5", "--env.horizon", "6")
COLLECT = ("collect", "rooms", *ROOM, "--algorithm", "epsilon", "--episodes", "6", "--streams", "2")
SPLIT = ("--split_seed", "3", "--train_share", "0.8", "--shard_size", "5")
EVALUATE = ("evaluate", "compressed_ad", "--run", "run", "--episodes", "6", "--seeds", "2", "--chunk", "3")


def test_no_goal_is_trained_and_evaluated(tmp_path: Path) -> None:
    message = good(forked(*COLLECT, *SPLIT, cwd=tmp_path)).stdout
    assert "made 25, skipped 0" in message and "mean over 25 tasks" in message
    source = (f"--data.init_args.root={tmp_path / 'rooms'}", "--data.init_args.demonstrator=null")
    short = ("--trainer.max_steps=4", "--trainer.val_check_interval=4", "--trainer.default_root_dir=run")
    good(forked("fit", "--config", SMOKE, *source, *short, cwd=tmp_path))
    tasks: list[set[tuple[int, ...]]] = []
    for split in ("train", "test"):
        facts = evaluate(tmp_path / "run", tmp_path / split, 2, 1, split, progress=False)
        tasks.append({tuple(map(int, row["task"].split())) for row in facts["tasks"]})
    learned, held_out = tasks
    assert (len(learned), len(held_out)) == (20, 5) and not learned & held_out

    data = HistoryData(Darkroom(5, 6), str(tmp_path / "rooms"), batch_size=8, windows=WindowOptions("random"))
    data.setup("fit")
    results: set[tuple[int, ...]] = set()
    for batch in data.train_dataloader():
        results |= {tuple(cell) for cell in batch["steps"].next_states[batch["steps"].rewards > 0].tolist()}
    assert results and results <= learned
    acted = {tuple(task) for batch in data.val_dataloader() if "tasks" in batch for task in batch["tasks"].tolist()}
    assert acted == held_out


COUNTERS = {
    "class_path": "zoo.compressed_ad.GymnasiumEnv",
    "init_args": {
        "id": "Counter-v0",
        "tasks": [{"length": length, "sign": sign} for sign in (1, -1) for length in (3, 4, 5, 2)],
        "limit": 4,
        "reward": [-2, 2],
    },
}


def test_an_environment_of_the_users_own_from_collect_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = f"--allow-import={PACKAGE}"
    data = {"env": COUNTERS, "root": "../counters", "demonstrator": None, "length": 20}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": {"init_args": data}}))
    collected = (
        "collect", "counters", "--env", json.dumps(COUNTERS), "--algorithm", "epsilon", "--steps", "24",
        "--streams", "4", "--train_share", "0.75", "--epsilon.demonstrator", f"{PACKAGE}.forward",
    )  # fmt: skip
    refused = forked(*collected, cwd=tmp_path)
    assert refused.returncode and "--allow-import" in refused.stderr and not (tmp_path / "counters").exists()
    assert "made 8, skipped 0" in good(forked(allow, *collected, cwd=tmp_path)).stdout
    run = tmp_path / "work"
    run.mkdir()
    short = ("--trainer.max_steps=4", "--trainer.val_check_interval=4", "--trainer.default_root_dir=run")
    recipe = SMOKE.with_name("smoke_spaces.yaml")
    good(forked(allow, "fit", "--config", recipe, "--config", "../data.yaml", *short, cwd=run))
    good(forked(allow, *EVALUATE, "--output", "evaluation", cwd=run))
    facts = json.loads((run / "evaluation" / "evaluation.json").read_text())
    assert len(facts["tasks"]) == 2 and facts["baselines"]["oracle"] == 8
    compare = ("report", "--evaluations", "[evaluation]", "--source", "../counters", "--output", "report")
    good(forked(allow, *compare, cwd=run))
    assert "Counter" in (run / "report" / "report.md").read_text()

    monkeypatch.chdir(run)
    agent = zoo.load(run / "run", allow_import=[PACKAGE])
    values = {field.name: field.default for field in agent.fields()}
    (run / "page").mkdir()
    outputs = agent.answer({**values, "episodes": 3}, run / "page", lambda share, text: None)
    assert [output.kind for output in outputs] == ["chart", "table"]
    assert {"room 1", "room 2", "mean", "oracle", "random"} == set(outputs[0].data["curves"])
