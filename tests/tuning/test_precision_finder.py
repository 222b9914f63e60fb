"""`zoo find-precision` on recipes with one optimizer and with two."""

from statistics import fmean

import pytest
import torch

from zoo.cli.main import main
from zoo.tuning import precision_finder


@pytest.mark.parametrize("recipe", ["flow/smoke", "hifigan/smoke"])
def test_precisions_are_compared_with_float32(recipe, tmp_path, working_folder, capsys):
    assert main(["find-precision", recipe, "--steps=1"]) == 0
    words = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row for row in words if row}
    assert rows["32-true"][-2:] == ["0.00%", "0.00%"]
    loss, gradients = (float(value.rstrip("%")) for value in rows["bf16-mixed"][-2:])
    assert loss < 10 and 0 < gradients < 50
    assert not list(tmp_path.iterdir())


def test_loss_is_that_of_a_batch_where_a_step_has_several(working_folder):
    losses = []
    for batches in (1, 4):
        recipe = ("flow/smoke", f"--trainer.accumulate_grad_batches={batches}")
        losses.append(fmean(precision_finder.measure_precision(recipe, "32-true", 1)[0].losses))
    assert 0.7 < losses[0] / losses[1] < 1.4


def test_without_float32_there_are_no_differences(monkeypatch, capsys):
    def measure(recipe, precision, steps):
        if precision == "32-true":
            raise torch.OutOfMemoryError
        measurement = precision_finder.Measurement()
        measurement.losses = [1.5]
        return measurement, 0.25, 2**30

    monkeypatch.setattr(precision_finder, "measure_precision", measure)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table breaks its cells
    assert main(["find-precision", "flow/smoke"]) == 0
    words = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row[1:] for row in words if row}
    assert rows["32-true"] == ["out", "of", "memory"]
    assert rows["bf16-mixed"] == ["0.25", "1", "GiB", "1.5"]
