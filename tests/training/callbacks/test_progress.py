"""The line of a training's progress."""

from rich.progress import Progress

from zoo.training.callbacks.progress import SPEED_SECONDS, describe_task


def test_slow_steps_have_a_speed() -> None:
    now = [0.0]
    bars = Progress(disable=True, get_time=lambda: now[0], speed_estimate_period=SPEED_SECONDS)
    task = bars.add_task("step", total=10, completed=2, first=2, values=[])
    for step in (3, 4):
        now[0] += 60
        bars.update(task, completed=step)
    assert describe_task(bars.tasks[0]) == "step 4/10 · 40 % · 60 s/it · ETA 6 min"
