"""K1: kill -9 at a step, resume, and end with the same bits as the run that was not killed."""

from pathlib import Path

import pytest

from tests.harness import REPOSITORY, SMOKE, TOY_ARGS, TOY_RECIPE, fingerprint, forked, good, newest, record

KILL = "--trainer.callbacks+=toy_wing.faults.KillAt"
STEP = "--trainer.callbacks.step={}"
EMA = ["--trainer.callbacks+=zoo.training.EMA", "--trainer.callbacks.decay=0.9"]
HIFIGAN = [
    "--config", str(SMOKE), *TOY_ARGS, "--trainer.max_steps=25", "--trainer.limit_train_batches=20",
    "--checkpoints.every_n_steps=5", "--trainer.log_every_n_steps=1", "--data.init_args.corpus.embedded_utterances=26",
    "--trainer.val_check_interval=10", "--data.init_args.batch_size=1",
]  # fmt: skip


# the gradient through WavLM's x-vectors is rounded otherwise in another process, by some 1e-9
MIIPHER = [
    *TOY_ARGS, "--trainer.max_steps=24", "--checkpoints.every_n_steps=5", "--trainer.log_every_n_steps=1",
    "--trainer.val_check_interval=6", "--data.init_args.corpus.embedded_utterances=10", "--data.init_args.batch_size=1",
]  # fmt: skip
SHORT = [
    *TOY_ARGS, "--trainer.max_steps=24", "--checkpoints.every_n_steps=5", "--trainer.log_every_n_steps=1",
    "--trainer.val_check_interval=6",
]  # fmt: skip
RECIPES = {
    "flow": "flow/smoke",  # EMA, dropout and epochs of 11 batches
    **{name: f"flow/smoke_{name}" for name in ("conditions", "autoencoder", "dit", "latent", "meanflow")},
    "compressed_ad": "compressed_ad/smoke",  # a curriculum whose second stage begins at batch 3
    "spaces": "compressed_ad/smoke_spaces",
    "ci_llm": "ci_llm/smoke",
}


def arguments(system: str, workers: int) -> list[str]:
    if system == "toy":
        ema = [*EMA, "--trainer.callbacks.modules=[net]"]
        args = ["--config", str(TOY_RECIPE), *TOY_ARGS, *ema]
    elif system == "hifigan":
        args = [*HIFIGAN, *EMA, "--trainer.callbacks.modules=[generator]"]
    elif system == "stochastic":
        args = [str(SMOKE.with_stem(f"smoke_{system}")) if each == str(SMOKE) else each for each in HIFIGAN]
    elif system in RECIPES:
        args = ["--config", str(REPOSITORY / "configs" / f"{RECIPES[system]}.yaml"), *SHORT]
    else:
        args = ["--config", str(REPOSITORY / "configs" / "miipher" / f"smoke_{system}.yaml"), *MIIPHER]
    return [*args, f"--data.init_args.num_workers={workers}"]


class Uninterrupted(dict[str, Path]):
    """Runs by system, each made when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory

    def __missing__(self, system: str) -> Path:
        folder = self.factory.mktemp(system)
        root = f"--trainer.default_root_dir={folder / 'reference'}"
        good(forked("fit", *arguments(system, 0), root, cwd=folder))
        self[system] = folder / "reference"
        return self[system]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    return Uninterrupted(tmp_path_factory)


def killed_and_resumed(system: str, step: int, workers: int, folder: Path, *options: str) -> Path:
    run = folder / "killed"
    root = f"--trainer.default_root_dir={run}"
    killed = forked("fit", *arguments(system, workers), KILL, STEP.format(step), *options, root, cwd=folder)
    assert killed.returncode == -9, killed.stderr[-3000:]
    saved = newest(run)
    assert int(saved.stem.split("_")[1]) == (step - 1) // 5 * 5  # a validation comes before the save
    resumed = good(forked("fit", *arguments(system, workers), "--ckpt_path=last", root, cwd=folder))
    assert "resumed from" in resumed.stderr
    return run


def assert_equal_runs(run: Path, reference: Path) -> None:
    assert fingerprint(newest(run)) == fingerprint(newest(reference))
    assert record(run) == record(reference)


@pytest.mark.parametrize(
    ("system", "step", "workers"),
    [
        ("toy", 8, 0),
        ("toy", 20, 2),
        ("toy", 21, 0),
        ("hifigan", 21, 0),
        ("adapter", 12, 2),
        ("finetune", 17, 0),
        ("magnitudes", 12, 0),
        ("stochastic", 12, 0),
        pytest.param("vocos", 12, 2, marks=pytest.mark.slow),
        ("flow", 19, 2),
        pytest.param("conditions", 13, 2, marks=pytest.mark.slow),
        pytest.param("autoencoder", 13, 0, marks=pytest.mark.slow),
        pytest.param("dit", 13, 2, marks=pytest.mark.slow),
        pytest.param("latent", 13, 0, marks=pytest.mark.slow),
        ("meanflow", 13, 0),
        ("compressed_ad", 13, 2),
        ("spaces", 13, 2),
        ("ci_llm", 12, 2),
    ],
)
def test_resumed_run_equals_uninterrupted(
    uninterrupted: Uninterrupted, tmp_path: Path, system: str, step: int, workers: int
) -> None:
    run = killed_and_resumed(system, step, workers, tmp_path)
    assert_equal_runs(run, uninterrupted[system])


@pytest.mark.parametrize("system", ["flow", "hifigan"])
def test_killed_while_it_writes_samples(uninterrupted: Uninterrupted, tmp_path: Path, system: str) -> None:
    step = {"flow": 12, "hifigan": 10}[system]
    writing = ["--trainer.callbacks.where=media", "--samples.every_n_validations=1"]
    run = killed_and_resumed(system, step, 0, tmp_path, *writing)
    assert_equal_runs(run, uninterrupted[system])
    assert next(run.glob(f"media/step_{step:08d}/*"))
    assert not list(run.rglob("*.tmp*"))
