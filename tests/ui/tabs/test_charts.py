"""Which charts a run has, and what ECharts draws."""

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from zoo.ui.tabs.charts import Panel, arrange_panels


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
