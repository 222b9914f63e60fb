"""Every figure of the README's table over fresh seeds: python scripts/evidence/all.py --help.

A training that is finished is not run again, one that was killed goes on from its last checkpoint: start the same
command again. What is finished so far is in docs/evidence.md and in evidence.json beside it and below the output. A
finished seed of the same recipes that stands beside the page is not trained again in another checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # when called by its path

import torch

import zoo
from scripts.bench.tools import cost_of, train_once
from scripts.evidence.demos import BESIDE, CLAIMS, DEMOS, EACH, Claim, Demo, Figures, Unit
from zoo.common.atomic_files import write_atomic
from zoo.common.configs import load_recipe
from zoo.common.environment import describe_machine
from zoo.common.locks import lock_folder
from zoo.common.reports import markdown_table, replace_non_finite
from zoo.common.systems import recipe_root
from zoo.tuning.study import die_with_parent

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = Path("runs/evidence")
DOCUMENT = REPOSITORY / "docs" / "evidence.md"
SEEDS = 3
UNITS, RESULT, REPORT = "units.json", "seed.json", "evidence.json"
MISSED, MET, OPEN = "missed", "met", "not run"


def seeds_of(date: str, count: int, redrawn: int = 0) -> list[int]:
    """Seeds that nobody chose: the k-th is 1000 + sha256("<date> <k>") mod 999,000, so never one of the demos' own.

    Args:
        date: YYYY-MM-DD.
        count: number of them.
        redrawn: other seeds of the date: "<date>" is "<date>+<redrawn>" where this is not 0.
    """
    drawn = f"{date}+{redrawn}" if redrawn else date
    digests = (hashlib.sha256(f"{drawn} {number}".encode()).hexdigest() for number in range(count))
    return [1000 + int(digest, 16) % 999_000 for digest in digests]


def chosen(systems: Sequence[str] = ()) -> list[Demo]:
    """Demos by the names of systems or their own; all without any.

    Raises:
        ValueError: for a name that is neither.
    """
    known = {*DEMOS, *(demo.system for demo in DEMOS.values())}
    if unknown := [name for name in systems if name not in known]:
        raise ValueError(f"--systems {' '.join(unknown)}: known are {', '.join(sorted(known))}")
    return [demo for demo in DEMOS.values() if not systems or {demo.name, demo.system} & set(systems)]


def check_data(demos: Iterable[Demo]) -> None:
    """Refuse to judge on the embedded corpora what is claimed of real recordings.

    Raises:
        FileNotFoundError: when a folder is missing.
    """
    data = Path(os.environ.get("ZOO_DATA", "data"))
    for demo in demos:
        if missing := [str(data / name) for name in demo.data if not (data / name).is_dir()]:
            raise FileNotFoundError(f"no {', '.join(missing)}, and {demo.name} is judged on recordings: set ZOO_DATA")


def run_seed(name: str, root: Path, seed: int, quick: bool = False) -> None:
    """Train what is missing of a demo for one seed, then gather its figures into `seed.json`.

    Args:
        name: of the demo.
        root: folder of the seed; a process that still works there is waited for.
        seed: of everything.
        quick: two steps of each training.

    Raises:
        ValueError: when the folder holds runs of another recipe.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    demo = DEMOS[name]
    with lock_folder(root, f"evidence {name}", timeout_seconds=30 * 86400):
        plan = list(demo.plan(root, seed, quick))
        digests = {unit.name: _digest(unit, root, quick) for unit in plan}
        found = _result(root, quick)
        if found.get("figures") and found["digests"] == digests:
            return
        kept: dict[str, Any] = {"demo": name, "seed": seed, "quick": quick, "digests": digests}
        kept |= {"figures": {}, "error": None}
        gathered = 0.0
        try:
            for unit in plan:
                _run_unit(unit, root, quick)
            gathered = cost_of(lambda: kept.update(figures=demo.figures(root, quick))).cpu
        except subprocess.CalledProcessError as error:
            kept["error"] = f"{unit.name}: `zoo {error.cmd[3]}` ended with {error.returncode}"
        except (ValueError, OSError) as error:
            kept["error"] = str(error)
        units = _read(root / UNITS)
        kept["cpu_seconds"] = gathered + sum(each.get("cpu_seconds", 0.0) for each in units.values())
        kept["resumed"] = any(each["attempts"] > 1 for each in units.values())  # what was killed took time as well
        _write(root / RESULT, {**kept, "date": time.strftime("%Y-%m-%d"), "machine": describe_machine()})


def _run_unit(unit: Unit, root: Path, quick: bool) -> None:
    """Run a unit unless it was finished before; note what it took."""
    units = _read(root / UNITS)
    known = units.get(unit.name, {"attempts": 0, "digest": _digest(unit, root, quick)})
    if known["digest"] != _digest(unit, root, quick):
        raise ValueError(f"{root / unit.name} was trained by another recipe: delete {root}, or choose another --output")
    if "cpu_seconds" in known:
        return
    known["attempts"] += 1
    _write(root / UNITS, {**units, unit.name: known})
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {root / unit.name}", flush=True)
    if unit.arguments[0] == "fit":
        known["cpu_seconds"] = cost_of(lambda: train_once(root / unit.name, unit.arguments, quick)).cpu
    else:
        command = [sys.executable, "-m", "zoo", *unit.arguments]
        known["cpu_seconds"] = cost_of(lambda: subprocess.run(command, check=True)).cpu
    _write(root / UNITS, {**units, unit.name: known})


def _digest(unit: Unit, root: Path, quick: bool) -> str:
    """Of all that decides a unit: its arguments, wherever the folders lie, and the recipes' contents."""
    arguments = [each.replace(str(root), "").replace(str(recipe_root()), "") for each in unit.arguments]
    configs = [Path(each.removeprefix("--config=")) for each in unit.arguments if each.startswith("--config=")]
    recipes = [load_recipe(path) for path in configs]
    return hashlib.sha256(json.dumps([arguments, quick, recipes]).encode()).hexdigest()


def reproduce(
    date: str,
    output: Path | None = None,
    systems: Sequence[str] = (),
    seeds: int = SEEDS,
    jobs: int = 1,
    document: Path | None = DOCUMENT,
    quick: bool = False,
    only_report: bool = False,
) -> dict[str, Any]:
    """Train and gather all that is not done yet, and write the report after each seed of each demo.

    Args:
        date: of which the seeds are made, YYYY-MM-DD.
        output: folder of the runs.
        systems: names of systems or demos; all without any.
        seeds: number of them.
        jobs: processes.
        document: page to write, with a .json of its name beside it; None for none.
        quick: two steps of each training; the figures are no evidence.
        only_report: train and gather nothing.

    Returns:
        The report, of all demos.

    Raises:
        ValueError: for an unknown system or date.
        FileNotFoundError: when recordings are missing.
    """
    time.strptime(date, "%Y-%m-%d")
    output = Path(output or ROOT / date).absolute()
    demos = chosen(systems)
    if document is not None and not quick:
        _adopt(document.with_suffix(".json"), output, date, seeds)
    if not only_report:
        if not quick:
            check_data(demos)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=die_with_parent) as pool:
            wanted = [(demo.name, seed) for demo in demos for seed in seeds_of(date, seeds, demo.redrawn)]
            roots = [(name, _root(output, name, seed), seed) for name, seed in wanted]
            for done in as_completed([pool.submit(run_seed, *each, quick) for each in roots]):
                done.result()
                report(date, output, seeds, document, quick)
    return report(date, output, seeds, document, quick)


def report(date: str, output: Path, count: int, document: Path | None, quick: bool = False) -> dict[str, Any]:
    """Judge what is finished of a date's seeds, and write `evidence.json`, the page, and the same file beside it."""
    seeds = {name: seeds_of(date, count, demo.redrawn) for name, demo in DEMOS.items()}
    results = {name: {seed: _result(_root(output, name, seed), quick) for seed in seeds[name]} for name in DEMOS}
    content = {
        "date": date,
        "seeds": seeds_of(date, count),
        "quick": quick,
        "zoo": zoo.__version__,
        "commit": _commit(),
        "claims": [judge(claim, results[claim.demo]) for claim in CLAIMS],
        "results": {name: {str(seed): found for seed, found in each.items()} for name, each in results.items()},
    }
    _write(output / REPORT, content)
    if document is not None:
        if not quick:
            _write(document.with_suffix(".json"), content)
        text = page(content)
        write_atomic(document, lambda file: file.write(text.encode()))
    return content


def _adopt(kept: Path, output: Path, date: str, count: int) -> None:
    """Take the seeds that stand beside the page, were made by today's recipes, and are not in the folder."""
    results = _read(kept).get("results", {})
    for demo in DEMOS.values():
        for seed in seeds_of(date, count, demo.redrawn):
            found, root = results.get(demo.name, {}).get(str(seed), {}), _root(output, demo.name, seed)
            if found.get("figures") and not found["quick"] and not (root / RESULT).exists():
                plan = demo.plan(root, seed, False)
                if found["digests"] == {unit.name: _digest(unit, root, False) for unit in plan}:
                    _write(root / RESULT, found)


def judge(claim: Claim, results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """A claim's figures and verdict; of unfinished seeds nothing is known, and one that failed misses it."""
    known = [each["figures"] for each in results.values() if each.get("figures")]
    found: list[Figures] = [
        {name: math.nan if value is None else value for name, value in each.items()} for each in known
    ]
    errors = [each["error"] for each in results.values() if each.get("error")]
    shown = {"demo": claim.demo, "title": claim.title, "limit": claim.limit, "value": None, "seeds": []}
    verdict = MISSED if errors else OPEN
    if found:
        shown |= {"value": claim.value(found), "seeds": claim.values(found)}
        kept = claim.met(found) and not errors
        turns = len(found) < len(results) and not errors and (kept or claim.over != EACH)
        verdict = (MET if kept else MISSED) + (" so far" if turns else "")
    return {**shown, "verdict": verdict, "errors": errors}


def page(content: Mapping[str, Any]) -> str:
    """The report in markdown."""
    seeds, claims = content["seeds"], content["claims"]
    results = [each for found in content["results"].values() for each in found.values() if each]
    counts = {verdict: sum(each["verdict"].startswith(verdict) for each in claims) for verdict in (MET, MISSED, OPEN)}
    minutes = sum(each["cpu_seconds"] for each in results) / 60
    done, total = sum(bool(each["figures"]) for each in results), len(content["results"]) * len(seeds)
    lines = [
        "# Evidence",
        "",
        "Written by `scripts/evidence/all.py`; do not edit. Every figure of the README's table, over "
        f"{len(seeds)} seeds that nobody chose: the k-th, from 0, is 1000 + "
        f'sha256("{content["date"]} <k>") mod 999,000, here {", ".join(map(str, seeds))}. Weights, batches, noise and '
        "degradations follow the seed, and so do the digits' split, the goals held out and the questions; the three "
        "recordings held out are the same.",
        "",
        f"{counts[MET]} thresholds met, {counts[MISSED]} missed, {counts[OPEN]} not run; {done} of {total} "
        f"seeds of demos finished, {minutes:.0f} CPU-minutes."
        + (" **Quick: two steps of each training, no evidence.**" if content["quick"] else ""),
        "",
        f"zoo {content['zoo']}{', commit ' + content['commit'] if content['commit'] else ''}; {_versions(results)}",
        "",
        "<!-- not run: hours -->",
        "```bash",
        f"python scripts/evidence/all.py --date {content['date']} # all of it; begun again, it goes on",
        f"ZOO_EVIDENCE=runs/evidence/{content['date']} python -m pytest -m evidence # judges it, trains nothing",
        "```",
        "",
        "## Missed",
        "",
    ]
    missed = [each for each in claims if each["verdict"].startswith(MISSED)]
    lines += [f"- **{each['demo']}**: {each['title']}: {_value(each)}, threshold {each['limit']}" for each in missed]
    lines += [] if missed else ["Nothing."]
    found = content["results"]
    if unfinished := [name for name in DEMOS if any(not each.get("figures") for each in found[name].values())]:
        lines += ["", "## Not finished", "", *(f"- {name}: {_progress(found[name])}" for name in unfinished)]
    for demo in DEMOS.values():
        lines += ["", f"## {demo.name}", "", *_section(demo, content)]
    return "\n".join(lines) + "\n"


def _section(demo: Demo, content: Mapping[str, Any]) -> list[str]:
    found = content["results"][demo.name]
    done = {seed: each for seed, each in found.items() if each}
    dates = sorted({each["date"] for each in done.values()})
    at_least = "at least " if any(each["resumed"] for each in done.values()) else ""
    lines = [f"{_progress(found)}.", ""]
    if demo.redrawn:
        lines[0] += (
            f" Its recipe was changed after seeds of a date had been seen, so that those of "
            f'"{content["date"]}+{demo.redrawn}" judge it: {", ".join(found)}.'
        )
    if done:
        minutes = ", ".join(f"{each['cpu_seconds'] / 60:.1f}" for each in done.values())
        days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        lines[0] += f" {days}; {at_least}{minutes} CPU-minutes, evaluation included."
        lines[0] += "".join(
            f" From {each}." for each in dict.fromkeys(each.get("source") for each in done.values()) if each
        )
    rows = []
    for each in content["claims"]:
        if each["demo"] == demo.name:
            numbers = ", ".join(map(_number, each["seeds"]))
            rows.append([each["title"], each["limit"], _judged(each), numbers, _bold(each["verdict"])])
    for name in BESIDE.get(demo.name, ()):
        values = [each["figures"][name] for each in done.values() if name in each["figures"]]
        if values:
            rows.append([name, "", _number(sum(values) / len(values)), ", ".join(map(_number, values)), ""])
    lines += [markdown_table(["figure", "threshold", "found", "seeds", "verdict"], rows), ""]
    lines += ["<!-- not run: see above -->", "```bash"]
    lines += [f"python scripts/evidence/all.py --date {content['date']} --systems {demo.name}", "```"]
    return lines


def _progress(found: Mapping[str, Mapping[str, Any]]) -> str:
    done = sum(bool(each.get("figures")) for each in found.values())
    failed = [f"seed {seed}: {each['error']}" for seed, each in found.items() if each.get("error")]
    return "; ".join([f"{done} of {len(found)} seeds", *failed])


def _versions(results: Sequence[Mapping[str, Any]]) -> str:
    """Machines and versions on which the results were made."""
    machines = [each["machine"] for each in results]
    found = [f"Python {each['python']}, torch {each['torch']}, lightning {each['lightning']}, one thread of "
             f"{each['processor']}" for each in machines]  # fmt: skip
    return "; ".join(dict.fromkeys(found)) or "nothing was run."


def _value(claim: Mapping[str, Any]) -> str:
    if claim["value"] is None:
        return "; ".join(claim["errors"])
    seeds = ", ".join(map(_number, claim["seeds"]))
    return "; ".join([f"{_judged(claim)} (seeds {seeds})", *claim["errors"]])


def _judged(claim: Mapping[str, Any]) -> str:
    """A claim's value, with more digits where it would look like the threshold that it missed."""
    shown, threshold = _number(claim["value"]), claim["limit"].split()[-1]
    missed = claim["verdict"].startswith(MISSED)
    return f"{claim['value']:.4g}" if missed and shown == threshold else shown


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict.startswith(MISSED) else verdict


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _root(output: Path, demo: str, seed: int) -> Path:
    return output / demo / str(seed)


def _result(root: Path, quick: bool) -> dict[str, Any]:
    """What is known of a seed; nothing while it is not finished, or was made otherwise."""
    found = _read(root / RESULT)
    return found if found.get("quick") is quick else {}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    data = json.dumps(replace_non_finite(content), indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write(data))


def _commit() -> str:
    """The checkout's commit, "" where there is none."""
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main() -> None:
    """The command line; ends with 1 when a threshold is missed."""
    parser = argparse.ArgumentParser(description="Train every demo over fresh seeds and judge the README's figures")
    parser.add_argument("--systems", nargs="+", default=[], help="or demos, such as flow/digits; all when not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, made of the date")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="YYYY-MM-DD; to go on, that of the beginning")
    parser.add_argument("--output", type=Path, help=f"folder of the runs; {ROOT}/DATE when not given")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="page to write, and its .json")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each of one thread")
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are no evidence")
    parser.add_argument("--report", action="store_true", help="train nothing; write the page from what is there")
    options = vars(parser.parse_args())
    options["only_report"] = options.pop("report")
    try:
        content = reproduce(**options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    missed = [each for each in content["claims"] if each["verdict"].startswith(MISSED)]
    for each in missed:
        print(f"missed: {each['demo']}: {each['title']}: {_value(each)}, threshold {each['limit']}")
    print(f"{len(missed)} of {len(content['claims'])} thresholds missed; see {options['document']}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
