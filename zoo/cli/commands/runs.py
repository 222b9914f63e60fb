"""`zoo runs`."""

from __future__ import annotations

import json as text
from pathlib import Path
from typing import Any

from zoo.common.report import plain, show_table, terminal_table
from zoo.runs import listing
from zoo.runs.details import ago, described, duration, record


def main(*run: str, root: Path = Path("runs"), last: int = 20, json: bool = False) -> int:
    """List runs, the newest first, or tell one: zoo runs [RUN].

    Args:
        *run: a run's folder, the end of its name, or `last`; without it all runs are listed.
        root: the folder that runs lie below.
        last: list so many; 0 lists all.
        json: print JSON.

    Returns:
        0.

    Raises:
        ValueError: there is no such run, or more than one is named.
        FileNotFoundError: there is no folder `root`.
    """
    if len(run) > 1:
        raise ValueError(f"runs tells one run, found {', '.join(run)}; `zoo compare` takes several")
    if run:
        folder = listing.find_run(run[0], root)
        if not listing.is_run(folder):
            raise ValueError(f"{folder} holds no run: no {listing.CONFIG_NAME}, {listing.CSV_NAME} or checkpoint")
        facts = described(listing.read_run(folder, root))
        print(text.dumps(plain(facts), indent=1, ensure_ascii=False)) if json else _tell(facts)
        return 0
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; --root names the one that runs lie below")
    runs = listing.list_runs(root)
    shown = runs[:last] if last > 0 else runs
    if json:
        print(text.dumps(plain([record(each) for each in shown]), indent=1, ensure_ascii=False))
        return 0
    if not runs:
        print(f"no runs below {root}; `zoo fit --config RECIPE` makes one")
        return 0
    columns = ("recipe", "run", "state", "step", "best", "age")
    rows = [(r.recipe, r.short_name, r.state, steps(r), _best(r), ago(r.changed)) for r in shown]
    whole = ("run", "state", "step", "age")
    show_table(terminal_table(columns, rows, left=columns[:5], whole=whole, box=None, pad_edge=False))
    if len(shown) < len(runs):
        print(f"{len(runs) - len(shown)} older ones: --last 0 lists all")
    return 0


def steps(run: listing.Run) -> str:
    """How far a run has come: `120/2600`, or by epochs `120 (epoch 3/10)`."""
    if run.total is not None:
        return f"{run.step}/{run.total}"
    return f"{run.step}" + (f" (epoch {run.epoch}/{run.epochs})" if run.epochs else "")


def _best(run: listing.Run) -> str:
    return "-" if run.best is None else f"{run.monitor} {run.best:.4g}"


def _tell(facts: dict[str, Any]) -> None:
    best = facts["best"]
    lines = {
        "recipe": facts["recipe"],
        "state": f"{facts['state']}, last sign of life {ago(facts['changed'])} ago",
        "step": facts["progress"],
        "time": duration(facts["seconds"]) if facts["seconds"] is not None else "unknown",
        "best": "none" if best is None else f"{facts['monitor']} {best['value']:.6g} at step {best['step']}",
        **facts["config"],
    }
    print(facts["folder"])
    for key, value in lines.items():
        print(f"  {key:<12}{value}")
    for title, rows in (
        (
            "checkpoints",
            [
                (c["name"], f"{c['bytes'] / 2**20:.1f} MiB", "sound" if c["sound"] else "TORN")
                for c in facts["checkpoints"]
            ],
        ),
        ("last values", [(key, f"{value:.6g}") for key, value in facts["last"].items()]),
        ("samples", [(facts["media"]["folder"], ", ".join(facts["media"]["files"]))] if facts["media"] else []),
        ("next", [(command,) for command in facts["next"]]),
    ):
        width = max((len(row[0]) for row in rows), default=0)
        print(f"  {title}:" + ("" if rows else " none"))
        for row in rows:
            print(f"    {row[0]:<{width}}  {'  '.join(row[1:])}".rstrip())
