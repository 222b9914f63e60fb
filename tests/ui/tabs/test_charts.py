"""Which charts a run has, and what ECharts draws."""

from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from zoo.ui.tabs.charts import COLORS, Panel, arrange_panels, panel_lines


def titles(groups: dict[str, list[Panel]]) -> dict[str, list[str]]:
    return {name: [panel.title for panel in panels] for name, panels in groups.items()}


def test_training_and_validation_share_a_chart_and_the_monitored_metric_is_first() -> None:
    metrics = ["epoch", "train/loss", "train/mel", "train/grad_norm", "train/lr_a", "train/lr_b", "val/loss", "val/mel"]
    groups = arrange_panels([*metrics, "val/lsd"], monitor="val/lsd")
    assert titles(groups) == {
        "Losses": ["val/lsd", "loss"],
        "Training and validation": ["mel"],
        "Learning rates": ["learning rate"],
        "System": ["train/grad_norm"],
    }
    assert groups["Losses"][1].metrics == ("train/loss", "val/loss")
    assert groups["Learning rates"][0].metrics == ("train/lr_a", "train/lr_b")


def test_terms_are_grouped_by_prefix() -> None:
    metrics = ["train/d/mpd", "train/g/mel", "train/g/total", "val/mel_l1", "odd"]
    assert titles(arrange_panels(metrics)) == {
        "Losses": ["train/g/total"],
        "Training: d": ["train/d/mpd"],
        "Training: g": ["train/g/mel"],
        "Validation": ["val/mel_l1"],
        "odd": ["odd"],
    }


def test_several_runs_have_a_color_each_and_dash_the_validation() -> None:
    panel = Panel("loss", ("train/loss", "val/loss"))
    curves: Any = {"train/loss": (((0, 1.0),), ()), "val/loss": (((0, 2.0),), ())}
    runs: Any = {"smoke/1": curves, "smoke/2": {"val/loss": (((0, 3.0),), ())}}
    assert [(line.name, COLORS.index(line.color), line.dashed) for line in panel_lines(panel, runs)] == [
        ("smoke/1 train/loss", 0, False),
        ("smoke/1 val/loss", 0, True),
        ("smoke/2 val/loss", 1, True),
    ]
