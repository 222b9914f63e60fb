"""What a resume changes takes effect, config.yaml says what was trained, and a refused resume changes no file."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.harness import TOY_ARGS, TOY_RECIPE, contents, fingerprint, newest
from zoo.cli.main import main
from zoo.runs.metrics_csv import read_metrics

pytestmark = pytest.mark.usefixtures("working_folder")
LIMITS = ["--trainer.log_every_n_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0"]
LIMITS += ["--samples.enabled=false", "--checkpoints.every_n_steps=3"]


def fit(run: Path, *args: object, recipe: object | None = None) -> int:
    source = [f"--ckpt_path={run}"] if recipe is None else [str(recipe), f"--trainer.default_root_dir={run}", *LIMITS]
    return main(["fit", *source, *map(str, args)])


def read_config(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())


def trained_rates(run: Path) -> list[list[float]]:
    """The rates that a run logged, a list for each of its optimizers."""
    rows = read_metrics(run)
    keys = [key for key in rows[0] if key.startswith("train/lr_")]
    return [[float(row[key]) for row in rows if row[key]] for key in keys]


def kept_files(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name.endswith((".yaml", ".csv", ".ckpt"))}


@pytest.mark.parametrize(("recipe", "key"), [("hifigan/smoke", "optimizer_g"), ("audiosr/smoke", "optimizer")])
def test_extended_run_trains_at_the_rates_of_the_longer_schedule(recipe, key, tmp_path):
    run = tmp_path / "run"
    assert fit(run, "--trainer.max_steps=3", recipe=recipe) == 0
    first = trained_rates(run)
    for start, steps, options in ((3, 6, []), (6, 8, [f"--model.{key}.lr=1e-5"])):
        whole = tmp_path / str(steps)
        assert fit(whole, f"--trainer.max_steps={steps}", *options, recipe=recipe) == 0
        assert fit(run, f"--trainer.max_steps={steps}", *options) == 0
        assert read_config(run)["trainer"]["max_steps"] == steps
        rates, expected = trained_rates(run), trained_rates(whole)
        assert [each[start:] for each in rates] == [pytest.approx(each[start:], rel=1e-5) for each in expected]
        assert min(rate for each in rates for rate in each[start:]) > 0
        assert [each[:3] for each in rates] == first
    assert read_config(run)["model"]["init_args"][key]["init_args"]["lr"] == 1e-5


def test_resume_as_it_was_changes_no_weight_and_a_refused_one_no_file(tmp_path, capsys):
    run = tmp_path / "run"
    assert fit(run, "--trainer.max_steps=12", *TOY_ARGS, recipe=TOY_RECIPE) == 0
    trained = fingerprint(newest(run))
    assert fit(run, *TOY_ARGS) == 0
    assert fingerprint(newest(run)) == trained and read_config(run)["trainer"]["max_steps"] == 12
    before = kept_files(run)
    capsys.readouterr()
    for options, named in (
        (["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1"], "no SGD"),
        (["--model.scheduler=null"], "schedules"),
        (["--checkpoints.mode=max"], "are the best by val/error (min), not by val/error (max): move or delete them"),
        (["--checkpoints.monitor=train/loss"], "are the best by val/error (min), not by train/loss (min)"),
        (["--model.net.start=1"], "init_args.start is 0.0 in the checkpoint and 1.0 in the config"),
    ):
        assert fit(run, "--trainer.max_steps=20", *options, *TOY_ARGS) == 1
        assert named in capsys.readouterr().err.strip().splitlines()[-1]
        assert kept_files(run) == before
    assert fit(run, "--trainer.max_steps=20", "--checkpoints.monitor=null", *TOY_ARGS) == 0
    assert "\nbest " not in capsys.readouterr().err  # their metric is unknown


def test_run_with_a_link_to_elsewhere_is_refused(tmp_path, capsys):
    run, outside = tmp_path / "run", tmp_path / "outside"
    assert fit(run, "--trainer.max_steps=4", *TOY_ARGS, recipe=TOY_RECIPE) == 0
    outside.write_text("kept")
    for name in ("train.log", "metrics.csv", ".lock", "media"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside)
        assert fit(run, "--trainer.max_steps=8", *TOY_ARGS) == 1
        assert f"{name} is a link out of the run folder" in capsys.readouterr().err
        assert outside.read_text() == "kept"
        (run / name).unlink()


def test_resume_with_another_validation_interval_repeats_no_batch(tmp_path):
    at_end = ["--trainer.limit_train_batches=11", "--trainer.val_check_interval=11", *TOY_ARGS]
    assert fit(tmp_path / "uninterrupted", "--trainer.max_steps=25", *at_end, recipe=TOY_RECIPE) == 0
    assert fit(tmp_path / "first", "--trainer.max_steps=11", *at_end, recipe=TOY_RECIPE) == 0
    expected = fingerprint(newest(tmp_path / "uninterrupted"))
    for interval in (2, 7):
        run = shutil.copytree(tmp_path / "first", tmp_path / f"every_{interval}")
        assert fit(run, "--trainer.max_steps=25", f"--trainer.val_check_interval={interval}", *TOY_ARGS) == 0
        actual = fingerprint(newest(run))
        weights = [key for key in expected if key.startswith(("/state_dict", "state_dict"))]
        assert weights and [key for key in weights if expected[key] != actual[key]] == []
        steps = [row["step"] for row in read_metrics(run) if row["train/loss"]]
        assert steps == [str(step) for step in range(25)]


def test_tensorboard_shows_no_step_twice_after_a_kill(tmp_path):
    run, limits = tmp_path / "run", ["--loggers=[tensorboard]", "--trainer.val_check_interval=20", *TOY_ARGS]
    assert fit(run, "--trainer.max_steps=11", *limits, recipe=TOY_RECIPE) == 0
    newest(run).unlink()  # as if killed after step 11, with the checkpoint of step 9
    assert newest(run).name == "step_00000009.ckpt"
    assert fit(run, *TOY_ARGS) == 0
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(11))
