"""The first and last lines of a fit."""

from tests.harness import TOY_FIT, forked, forked_ranks, good
from zoo.common.environment import cpu_name
from zoo.training.callbacks.train_log import LOG_NAME


def last_table(text):
    """Return the table at a run's end by its first column."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("trained", "stopped", "failed")))
    table, key = {}, ""
    for line in lines[start:]:
        key = line[:15].strip() or key
        table.setdefault(key, []).append(line[16:])
    return table


def fit(folder, *options, **extra):
    return forked(*TOY_FIT, f"--trainer.default_root_dir={folder / 'run'}", *options, cwd=folder, **extra)


def test_whole_run(tmp_path):
    result = good(fit(tmp_path))
    assert result.stderr.startswith("recipe          toy_wing/smoke\nsystem          toy_wing.GainTask\n")
    assert "data            40 items to train on, 20 batches an epoch, 4 to validate\n" in result.stderr
    assert "parameters      1 trained\n" in result.stderr and f"cpu ({cpu_name()})" in result.stderr
    table = last_table(result.stderr)
    run = tmp_path / "run"
    (best,) = run.glob("best-*.ckpt")
    assert table["trained"][0].startswith("steps 1 to 60 in ")
    assert table["run folder"] == [f"{run} (step_00000060.ckpt)"]
    assert best.name in table["best"][0]
    assert table["loss"][0].startswith("first ") and ", last " in table["loss"][0]
    assert [line.split()[:2] for line in table["next"]] == [["zoo", "predict"], ["zoo", "export"]]
    assert all(str(run) in line and line.endswith("--allow-import toy_wing") for line in table["next"])
    log = (run / LOG_NAME).read_text()
    assert "toy_wing.GainTask" in log and "steps 1 to 60 in" in log and "max_steps=60" in log
    assert "max_steps" not in result.stderr


def test_verbosity_and_two_processes(tmp_path):
    options = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0"]
    assert good(fit(tmp_path, *options, ZOO_VERBOSITY="quiet")).stderr == ""
    assert "steps 1 to 1 in" in (tmp_path / "run" / LOG_NAME).read_text()
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10"]
    first, second = forked_ranks(*TOY_FIT, "--trainer.default_root_dir=both", *both, cwd=tmp_path)
    assert good(first).stderr.count("\ntrained ") == 1
    assert "4 = 2 per process x 2 processes" in first.stderr and "DDPStrategy" in first.stderr
    assert first.stderr.count("step 10/10 ") == 1
    assert good(second).stderr == ""
