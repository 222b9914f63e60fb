"""Smoke recipes on a CUDA device: all stages in each precision, figures beside the CPU's, resume and compiled code."""

import json
from pathlib import Path

import pytest
import torch

from tests.harness import REPOSITORY, assert_equal_runs, newest
from zoo.cli.main import main
from zoo.runs.load import load
from zoo.runs.metrics_csv import read_metrics

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("working_folder")]

SMOKE = sorted(f"{path.parent.name}/{path.stem}" for path in (REPOSITORY / "configs").glob("*/smoke*.yaml"))
LIMITS = ("--trainer.val_check_interval=3", "--checkpoints.every_n_steps=3", "--loggers=[]")
FLOAT32 = ("--trainer.accelerator=gpu", "--trainer.precision=32-true")
PRECISIONS = {"float32": FLOAT32, "bfloat16": ("trainer/gpu",), "float16": ("trainer/amp",)}


def fit(recipe: str, steps: int, *options: str) -> Path:
    """Train a recipe in a new run folder."""
    before = set(Path().glob("runs/*/*/*"))
    assert main(["fit", recipe, *options, *LIMITS, f"--trainer.max_steps={steps}"]) == 0
    (run,) = set(Path().glob("runs/*/*/*")) - before
    return run


def validate(run: Path, accelerator: str) -> dict[str, float]:
    args = ["validate", "--ckpt_path", str(run), f"--trainer.accelerator={accelerator}", "--trainer.precision=32-true"]
    assert main(args) == 0
    row = read_metrics(run / "validate.csv")[-1]
    return {key: float(text) for key, text in row.items() if key.startswith("val/")}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("recipe", SMOKE)
def test_recipe_trains_goes_on_and_predicts(recipe: str, precision: str) -> None:
    run = fit(recipe, 4, *PRECISIONS[precision])
    assert main(["fit", "--ckpt_path", "last", "--trainer.max_steps=6"]) == 0
    assert newest(run).name == "step_00000006.ckpt"
    model = load(run, device="cuda")
    for module in model.modules().values():
        assert all(value.isfinite().all() for value in module.state_dict().values() if value.is_floating_point())
    source = model.write_example(Path("inputs", "a"))
    args = ["predict", "--ckpt_path", str(run), "--input", "inputs", "--output", "out", "--device", "cuda"]
    assert main(args) == 0
    (row,) = map(json.loads, Path("out", "manifest.jsonl").read_text().splitlines())
    assert Path(row["source"]).name == source.name and row["status"] == "done"


@pytest.mark.parametrize("recipe", SMOKE)
def test_validation_is_that_of_the_cpu(recipe: str) -> None:
    run = fit(recipe, 2, *FLOAT32)
    tolerance = 5e-3 if "encodec" in recipe else 1e-3  # rounding moves frames to other entries of EnCodec's codebooks
    assert validate(run, "gpu") == pytest.approx(validate(run, "cpu"), rel=tolerance, abs=1e-4)


@pytest.mark.parametrize("recipe", SMOKE)
def test_resumed_run_is_the_uninterrupted_one(recipe: str) -> None:
    options = (*FLOAT32, "--trainer.deterministic=warn")
    reference, resumed = fit(recipe, 6, *options), fit(recipe, 3, *options)
    assert main(["fit", "--ckpt_path", str(resumed), "--trainer.max_steps=6"]) == 0
    assert_equal_runs(resumed, reference)


@pytest.mark.parametrize("recipe", [name for name in SMOKE if not name.startswith("ci_llm/")])  # it has no such option
def test_compiled_recipe_trains(recipe: str) -> None:
    run = fit(recipe, 4, "trainer/gpu", "--model.compile=true")
    assert newest(run).name == "step_00000004.ckpt"
    torch.compiler.reset()


def test_precisions_and_batch_sizes_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find-precision", "flow/smoke", "--trainer.accelerator=gpu"]) == 0
    assert "16-mixed" in capsys.readouterr().out
    assert main(["find-batch", "flow/smoke", "--max", "32", "--trainer.accelerator=gpu"]) == 0
    assert "batch_size=32" in capsys.readouterr().out
