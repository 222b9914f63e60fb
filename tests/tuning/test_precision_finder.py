"""`zoo find-precision` on recipes with one optimizer and with two."""

from statistics import fmean

import pytest

from zoo.cli.main import main
from zoo.tuning import precision_finder


@pytest.mark.parametrize("recipe", ["flow/smoke", "hifigan/smoke"])
def test_precisions_are_compared_with_float32(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["find-precision", recipe, "--steps=1"]) == 0
    words = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row for row in words if row}
    assert rows["32-true"][-2:] == ["0.00%", "0.00%"]
    loss, gradients = (float(value.rstrip("%")) for value in rows["bf16-mixed"][-2:])
    assert loss < 10 and 0 < gradients < 50
    assert not list(tmp_path.iterdir())


def test_loss_is_that_of_a_batch_where_a_step_has_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    losses = []
    for batches in (1, 4):
        recipe = ("flow/smoke", f"--trainer.accumulate_grad_batches={batches}")
        losses.append(fmean(precision_finder.measure_precision(recipe, "32-true", 1)[0].losses))
    assert 0.7 < losses[0] / losses[1] < 1.4
