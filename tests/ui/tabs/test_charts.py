"""Which charts a run has, and what ECharts is told to draw."""

from typing import Any

from zoo.ui.tabs.charts import Line, Panel, arrange, lines_of, options

HOSTILE = ':constructor"><img src=x onerror=alert(1)>'


def titles(groups: dict[str, list[Panel]]) -> dict[str, list[str]]:
    return {name: [panel.title for panel in panels] for name, panels in groups.items()}


def test_training_and_validation_of_a_metric_share_a_chart_and_the_monitored_one_is_first() -> None:
    metrics = ["epoch", "train/loss", "train/mel", "train/grad_norm", "train/lr_a", "train/lr_b", "val/loss", "val/mel"]
    groups = arrange([*metrics, "val/lsd"], monitor="val/lsd")
    assert titles(groups) == {
        "Losses": ["val/lsd", "loss"],
        "Training and validation": ["mel"],
        "Learning rates": ["learning rate"],
        "System": ["train/grad_norm"],
    }
    assert groups["Losses"][1].metrics == ("train/loss", "val/loss")
    assert groups["Learning rates"][0].metrics == ("train/lr_a", "train/lr_b")


def test_terms_are_grouped_by_prefix() -> None:
    metrics = ["train/d/mpd", "train/g/mel", "train/g/total", "val/mel_l1", "odd", HOSTILE]
    assert titles(arrange(metrics)) == {
        "Losses": ["train/g/total"],
        "Training: d": ["train/d/mpd"],
        "Training: g": ["train/g/mel"],
        "Validation": ["val/mel_l1"],
        "odd": ["odd"],
        HOSTILE.partition("/")[0]: [HOSTILE],
    }
    assert arrange(["epoch"]) == arrange([]) == {}


def test_every_metric_has_one_chart() -> None:
    metrics = [
        f"{stage}/{part}{name}" for stage in ("train", "val") for part in ("", "g/") for name in ("loss", "lr_x")
    ]
    shown = [key for panels in arrange(metrics).values() for panel in panels for key in panel.metrics]
    assert sorted(shown) == sorted(metrics)


def test_a_single_point_is_seen_and_many_are_a_line() -> None:
    one, many = ((3, 0.5),), tuple((step, 1.0) for step in range(100))
    first, second = options([Line("a", one, 0), Line("b", many, 1)])["series"]
    assert first["showSymbol"] and first["symbolSize"] > 4
    assert not second["showSymbol"]


def test_a_log_scale_leaves_out_what_it_cannot_show() -> None:
    made = options([Line("a", ((0, -1.0), (1, 0.0), (2, 10.0)), 0)], log_scale=True)
    assert made["yAxis"]["type"] == "log" and made["series"][0]["data"] == ((2, 10.0),)


def test_smoothing_leaves_the_raw_curve_faint_behind() -> None:
    raw, mean = options([Line("a", ((0, 1.0),), 0, raw=((0, 2.0),))])["series"]
    assert raw["data"] == ((0, 2.0),) and raw["lineStyle"]["opacity"] < 0.5
    assert mean["data"] == ((0, 1.0),) and "opacity" not in mean["lineStyle"]


def test_several_runs_have_a_colour_each_and_dash_the_validation() -> None:
    panel = Panel("loss", ("train/loss", "val/loss"))
    curves = {"train/loss": ((0, 1.0),), "val/loss": ((0, 2.0),)}
    runs: Any = {"smoke/1": (curves, {}), "smoke/2": ({"val/loss": ((0, 3.0),)}, {})}
    assert [(line.name, line.colour, line.dashed) for line in lines_of(panel, runs)] == [
        ("smoke/1 train/loss", 0, False),
        ("smoke/1 val/loss", 0, True),
        ("smoke/2 val/loss", 1, True),
    ]
    assert [(line.colour, line.dashed) for line in lines_of(panel, {"": (curves, {})})] == [(0, False), (1, False)]
