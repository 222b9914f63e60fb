"""Kill -9 at a step, resume, and end with the same bits as the run that was not killed."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, TOY_ARGS, TOY_RECIPE, assert_equal_runs, fingerprint, forked, good, newest

KILL = "--trainer.callbacks+=toy_system.faults.KillAt"
STEP = "--trainer.callbacks.step={}"
HIFIGAN = ["--trainer.max_steps=25", "--trainer.val_check_interval=10", "--trainer.limit_train_batches=20"]
HIFIGAN += ["--data.init_args.corpus.embedded_utterances=26", "--data.init_args.batch_size=1"]
MIIPHER = ["--data.init_args.corpus.embedded_utterances=10", "--data.init_args.batch_size=1"]
OPTIONS = {"hifigan": HIFIGAN, "miipher": MIIPHER}


def arguments(recipe: str, workers: int) -> list[str]:
    system = recipe.partition("/")[0]
    args = ["--config", str(TOY_RECIPE if recipe == "toy" else REPOSITORY / "configs" / f"{recipe}.yaml"), *TOY_ARGS]
    if recipe != "toy":
        args += ["--trainer.max_steps=20", "--checkpoints.every_n_steps=5", "--trainer.log_every_n_steps=1"]
        args += ["--trainer.val_check_interval=6", *OPTIONS.get(system, [])]
    if recipe in ("toy", "hifigan/smoke"):
        net = "net" if recipe == "toy" else "generator"
        args += ["--trainer.callbacks+=zoo.training.EMA", "--trainer.callbacks.decay=0.9"]
        args += [f"--trainer.callbacks.modules=[{net}]"]
    return [*args, f"--data.init_args.num_workers={workers}"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs by recipe, each made when it is first asked for."""

    @functools.cache
    def run(recipe: str) -> Path:
        folder = tmp_path_factory.mktemp("uninterrupted")
        good(forked("fit", *arguments(recipe, 0), f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
        return folder / "run"

    return run


def killed_and_resumed(recipe: str, step: int, workers: int, folder: Path, *options: str) -> Path:
    run = folder / "killed"
    root = f"--trainer.default_root_dir={run}"
    killed = forked("fit", *arguments(recipe, workers), KILL, STEP.format(step), *options, root, cwd=folder)
    assert killed.returncode == -9, killed.stderr[-3000:]
    saved = newest(run)
    assert int(saved.stem.split("_")[1]) == (step - 1) // 5 * 5  # a validation comes before the save
    resumed = good(forked("fit", *arguments(recipe, workers), "--ckpt_path=last", root, cwd=folder))
    assert "resumed from" in resumed.stderr
    return run


SLOW = [  # recipe, step, workers
    ("audiosr/smoke_distill", 13, 0),
    ("audiosr/smoke_vae", 13, 2),
    ("audiosr/smoke_vocoder", 13, 0),
    ("ci_llm/smoke_backbone", 13, 2),
    ("compressed_ad/smoke_spaces", 13, 2),  # continuous spaces, quantiles of bins and moments from the data
    ("flow/smoke_conditions", 13, 2),
    ("flow/smoke_dit", 13, 2),
    ("flow/smoke_latent", 13, 0),
    ("flow/smoke_meanflow", 13, 0),  # a forward derivative whose dropout is that of the step
    ("hifigan/smoke_bigvgan", 12, 0),
    ("hifigan/smoke_encodec", 12, 2),
    ("hifigan/smoke_magnitudes", 12, 0),
    ("hifigan/smoke_stochastic", 12, 0),  # discriminators from batch 10 on
    ("hifigan/smoke_vocos", 12, 2),
    ("miipher/smoke_adapter", 12, 2),
    ("miipher/smoke_backbone", 12, 0),
    ("miipher/smoke_magnitudes", 12, 0),  # begins with what is solved for, once
    ("miipher/smoke_pretrain", 12, 2),
    ("miipher/smoke_vocos", 12, 2),
]


@pytest.mark.parametrize(
    ("recipe", "step", "workers"),
    [
        ("toy", 20, 2),
        ("toy", 21, 0),
        ("audiosr/smoke", 13, 2),  # EMA of selected modules, a loss guard
        ("ci_llm/smoke", 12, 2),
        ("compressed_ad/smoke", 13, 2),  # a curriculum whose second stage begins at batch 3
        ("flow/smoke", 19, 2),  # EMA, dropout and epochs of 11 batches
        ("hifigan/smoke", 21, 0),
        ("miipher/smoke_finetune", 17, 0),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW),
    ],
)
def test_resumed_run_equals_uninterrupted(
    uninterrupted: Callable[[str], Path], tmp_path: Path, recipe: str, step: int, workers: int
) -> None:
    run = killed_and_resumed(recipe, step, workers, tmp_path)
    assert_equal_runs(run, uninterrupted(recipe))


def test_killed_while_it_writes_samples(uninterrupted: Callable[[str], Path], tmp_path: Path) -> None:
    writing = ["--trainer.callbacks.where=media", "--samples.every_n_validations=1"]
    run = killed_and_resumed("flow/smoke", 12, 0, tmp_path, *writing)
    assert_equal_runs(run, uninterrupted("flow/smoke"))
    assert next(run.glob("media/step_00000012/*"))
    assert not list(run.rglob("*.tmp*"))


def test_plain_loader_is_the_negative_control(tmp_path: Path) -> None:
    plain = ["fit", "--config", TOY_RECIPE, *TOY_ARGS, "--data=toy_system.faults.PlainData"]
    reference, run = (f"--trainer.default_root_dir={tmp_path / name}" for name in ("reference", "killed"))
    good(forked(*plain, reference, cwd=tmp_path))
    assert forked(*plain, KILL, STEP.format(8), run, cwd=tmp_path).returncode == -9
    good(forked(*plain, "--ckpt_path=last", run, cwd=tmp_path))
    assert fingerprint(newest(tmp_path / "killed")) != fingerprint(newest(tmp_path / "reference"))
