"""Train every demo over fresh seeds and check the claims on them: python scripts/evidence/run.py --help.

The same command goes on: finished trainings are not repeated, a killed one begins anew, since other loops get its
processor time. docs/evidence.md has the results so far, docs/evidence.json all figures with the commits that each is
of. Seeds of that file whose recipes and scripts have not changed since are not trained again.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # when called by its path

import torch

import zoo
from scripts.bench.tools import cost_of, train_once
from scripts.evidence.claims import CLAIMS, DEMOS, TRIED
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder
from scripts.evidence.gallery import FOLDER as GALLERY
from zoo.common.atomic_files import write_atomic
from zoo.common.configs import load_recipe
from zoo.common.environment import describe_machine
from zoo.common.locks import is_locked, lock_folder
from zoo.common.reports import markdown_table, replace_non_finite
from zoo.common.systems import recipe_root
from zoo.tuning.study import die_with_parent

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = Path("runs/evidence")
DOCUMENT = REPOSITORY / "docs" / "evidence.md"
SEEDS = 3
STEPS, RESULT, REPORT = "steps.json", "seed.json", "evidence.json"
FAILED, PASSED, NOT_RUN = "failed", "passed", "not run"


def seeds_of(date: str, count: int, redrawn: int = 0) -> list[int]:
    """Return the seeds of a date: the k-th is 1000 + sha256("<date> <k>") mod 999,000.

    Args:
        date: YYYY-MM-DD.
        count: number of them.
        redrawn: other seeds of the date: "<date>" is "<date>+<redrawn>" where this is not 0.
    """
    key = f"{date}+{redrawn}" if redrawn else date
    digests = (hashlib.sha256(f"{key} {number}".encode()).hexdigest() for number in range(count))
    return [1000 + int(digest, 16) % 999_000 for digest in digests]


def select_demos(systems: Sequence[str] = ()) -> list[Demo]:
    """Return demos by the names of systems or their own; all without any.

    Raises:
        ValueError: for a name that is neither.
    """
    names = {*DEMOS, *(demo.system for demo in DEMOS.values())}
    if unknown := [name for name in systems if name not in names]:
        raise ValueError(f"--systems {' '.join(unknown)}: expected some of {', '.join(sorted(names))}")
    return [demo for demo in DEMOS.values() if not systems or {demo.name, demo.system} & set(systems)]


def check_data(demos: Iterable[Demo]) -> None:
    """Refuse claims on real recordings where only the embedded corpora are there.

    Raises:
        FileNotFoundError: when a folder is missing.
    """
    for demo in demos:
        if missing := [str(path) for name in demo.data if not (path := data_folder() / name).is_dir()]:
            hint = "set ZOO_DATA; scripts/prepare_evidence.sh writes what packages hold"
            raise FileNotFoundError(f"no {', '.join(missing)}, which {demo.name} needs: {hint}")


def run_seed(name: str, root: Path, seed: int, quick: bool = False) -> None:
    """Train what is missing of a demo for one seed, then write its figures into `seed.json`.

    Args:
        name: of the demo.
        root: folder of the seed; another process that works there is waited for.
        quick: two steps of each training.

    Raises:
        ValueError: when the folder holds runs of another recipe.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    demo = DEMOS[name]
    with lock_folder(root, f"evidence {name}", timeout_seconds=30 * 86400):
        plan = list(demo.plan(root, seed, quick))
        digests = _digests(demo, plan, root, quick)
        previous = _read_result(root, quick)
        if previous.get("figures") and previous["digests"] == digests:
            return
        result: dict[str, Any] = {"demo": name, "seed": seed, "quick": quick, "digests": digests}
        result |= {"figures": {}, "error": None}
        measuring = 0.0
        try:
            demo.prepare(root)
            for step in plan:
                _run_step(step, root, quick, digests[step.name])
            measuring = cost_of(lambda: result.update(figures=demo.figures(root, quick))).cpu
        except subprocess.CalledProcessError as error:
            result["error"] = f"{step.name}: `zoo {error.cmd[3]}` ended with {error.returncode}"
        except (ValueError, OSError) as error:
            result["error"] = str(error)
        steps = _read_json(root / STEPS)
        result["cpu_seconds"] = measuring + sum(each.get("cpu_seconds", 0.0) for each in steps.values())
        commits = dict.fromkeys([*(each["commit"] for each in steps.values()), _commit()])
        result |= {"commits": [*commits], "date": time.strftime("%Y-%m-%d"), "machine": describe_machine()}
        _write_json(root / RESULT, result)


def _run_step(step: EvidenceStep, root: Path, quick: bool, digest: str) -> None:
    """Run a step unless it was finished before; record its processor time and the commit."""
    steps, folder = _read_json(root / STEPS), root / step.name
    if step.name in steps:
        if steps[step.name]["digest"] != digest:
            raise ValueError(f"{folder} was trained by another recipe: delete {root}, or choose another --output")
        return
    while is_locked(folder):
        time.sleep(1)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {folder}", flush=True)
    commit = _commit()
    if step.arguments[0] == "fit":
        cost = cost_of(lambda: train_once(folder, step.arguments, quick))
    else:
        cost = cost_of(lambda: subprocess.run([sys.executable, "-m", "zoo", *step.arguments], check=True))
    _write_json(root / STEPS, {**steps, step.name: {"digest": digest, "cpu_seconds": cost.cpu, "commit": commit}})


def _digests(demo: Demo, plan: Sequence[EvidenceStep], root: Path, quick: bool) -> dict[str, str]:
    """Hash what decides each step, with the code that prepares its data, and the code that measures."""

    def code(function: Callable[..., Any]) -> str:
        return hashlib.sha256(inspect.getsource(sys.modules[function.__module__]).encode()).hexdigest()

    prepared = "" if demo.prepare is Demo._field_defaults["prepare"] else code(demo.prepare)
    return {**{step.name: _digest(step, root, quick, prepared) for step in plan}, "measure": code(demo.measure)}


def _digest(step: EvidenceStep, root: Path, quick: bool, code: str) -> str:
    """Hash all that decides a step: its arguments without folders, the recipes' contents and code."""
    folders = [str(root), str(recipe_root()), str(data_folder())]
    arguments = [functools.reduce(lambda text, folder: text.replace(folder, ""), folders, each)
                 for each in step.arguments]  # fmt: skip
    configs = [Path(each.removeprefix("--config=")) for each in step.arguments if each.startswith("--config=")]
    recipes = [load_recipe(path) for path in configs]
    return hashlib.sha256(json.dumps([arguments, quick, recipes, code]).encode()).hexdigest()


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
    """Train and measure all that is not done yet, and write the report after each seed of each demo.

    Args:
        date: of which the seeds are made, YYYY-MM-DD.
        output: folder of the runs.
        systems: names of systems or demos; all without any.
        seeds: number of them.
        jobs: processes.
        document: page to write, and a .json of its name beside it; None for none.
        quick: two steps of each training; the figures are no evidence.
        only_report: train and measure nothing.

    Returns:
        The report, of all demos.

    Raises:
        ValueError: for an unknown system or date.
        FileNotFoundError: when recordings are missing.
    """
    time.strptime(date, "%Y-%m-%d")
    output = Path(output or ROOT / (f"{date}-quick" if quick else date)).absolute()
    demos = select_demos(systems)
    if document is not None and not quick:
        _copy_published_seeds(document.with_suffix(".json"), output, date, seeds)
    if not only_report:
        if not quick:
            check_data(demos)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=die_with_parent) as pool:
            seeds_by_demo = [(demo.name, seed) for demo in demos for seed in seeds_of(date, seeds, demo.redrawn)]
            roots = [(name, _seed_folder(output, name, seed), seed) for name, seed in seeds_by_demo]
            for done in as_completed([pool.submit(run_seed, *each, quick) for each in roots]):
                done.result()
                write_report(date, output, seeds, document, quick)
    return write_report(date, output, seeds, document, quick)


def write_report(date: str, output: Path, count: int, document: Path | None, quick: bool = False) -> dict[str, Any]:
    """Check the claims on a date's finished seeds; write `evidence.json`, the page, and the same file beside it.

    A seed that the folder lacks keeps the published result.
    """
    published = {} if document is None or quick else _read_json(document.with_suffix(".json")).get("results", {})
    results: dict[str, dict[int, Any]] = {name: {} for name in DEMOS}
    for name, demo in DEMOS.items():
        for seed in seeds_of(date, count, demo.redrawn):
            result = _read_result(_seed_folder(output, name, seed), quick)
            results[name][seed] = result or published.get(name, {}).get(str(seed), {})
    content = {
        "date": date,
        "seeds": seeds_of(date, count),
        "quick": quick,
        "zoo": zoo.__version__,
        "claims": [check_claim(claim, results[claim.demo]) for claim in CLAIMS],
        "results": {name: {str(seed): result for seed, result in each.items()} for name, each in results.items()},
    }
    _write_json(output / REPORT, content)
    if document is not None:
        if not quick:
            _write_json(document.with_suffix(".json"), content)
            _copy_galleries(output, document.parent / GALLERY, results)
        text = page(content)
        write_atomic(document, lambda file: file.write(text.encode()))
    return content


def _copy_galleries(output: Path, target: Path, results: Mapping[str, Mapping[int, Any]]) -> None:
    """Copy what the first finished seed of each demo left for the gallery."""
    for name, seeds in results.items():
        first = next((seed for seed, each in seeds.items() if each.get("figures")), None)
        if first is not None and (made := _seed_folder(output, name, first) / GALLERY).is_dir():
            shutil.copytree(made, target / name, dirs_exist_ok=True)


def _copy_published_seeds(published: Path, output: Path, date: str, count: int) -> None:
    """Copy seeds of the published file that today's recipes made and that the folder lacks."""
    results = _read_json(published).get("results", {})
    for demo in DEMOS.values():
        for seed in seeds_of(date, count, demo.redrawn):
            result, root = results.get(demo.name, {}).get(str(seed), {}), _seed_folder(output, demo.name, seed)
            if result.get("figures") and not result["quick"] and not (root / RESULT).exists():
                if result["digests"] == _digests(demo, list(demo.plan(root, seed, False)), root, False):
                    _write_json(root / RESULT, result)


def check_claim(claim: Claim, results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Compare a claim with the finished seeds; a seed that ended with an error fails it."""
    figures: list[Figures] = [
        {name: math.nan if value is None else value for name, value in each["figures"].items()}
        for each in results.values()
        if {claim.figure, claim.to or claim.figure} <= each.get("figures", {}).keys()
    ]
    errors = [each["error"] for each in results.values() if each.get("error")]
    row: dict[str, Any] = {"demo": claim.demo, "title": claim.title, "limit": claim.limit, "value": None, "seeds": []}
    verdict = FAILED if errors else NOT_RUN
    if figures:
        row |= {"value": claim.value(figures), "seeds": claim.values(figures)}
        passed = claim.passes(figures) and not errors
        may_change = len(figures) < len(results) and not errors and (passed or claim.statistic != EACH)
        verdict = (PASSED if passed else FAILED) + (" so far" if may_change else "")
    return {**row, "verdict": verdict, "errors": errors}


def page(content: Mapping[str, Any]) -> str:
    """Format the report as markdown: one table, what failed first."""
    claims = content["claims"]
    results = [each for seeds in content["results"].values() for each in seeds.values() if each]
    counts = {verdict: sum(each["verdict"].startswith(verdict) for each in claims)
              for verdict in (PASSED, FAILED, NOT_RUN)}  # fmt: skip
    done, total = sum(bool(each["figures"]) for each in results), sum(map(len, content["results"].values()))
    minutes = sum(each["cpu_seconds"] for each in results) / 60
    redrawn = [f"{demo.name} those of `{content['date']}+{demo.redrawn}`" for demo in DEMOS.values() if demo.redrawn]
    lines = [
        "# Evidence",
        "",
        "Written by `scripts/evidence/run.py`; do not edit. Each demo is trained with "
        f"{len(content['seeds'])} seeds that were fixed before the first run: "
        f'1000 + sha256("{content["date"]} <k>") mod 999,000 for k = 0, 1, ..., here '
        f"{', '.join(map(str, content['seeds']))}. Recipes that were changed after their figures were known take other "
        f"seeds: {', '.join(redrawn) or 'none'}. All figures of all seeds are in `docs/evidence.json`.",
        "",
        f"{counts[PASSED]} claims passed, {counts[FAILED]} failed, {counts[NOT_RUN]} not run; {done} of {total} "
        f"seeds finished, {minutes:.0f} CPU-minutes."
        + (" **Quick: two steps of each training, no evidence.**" if content["quick"] else ""),
        "",
        f"zoo {content['zoo']}; {_versions(results)}",
        "",
        *_commits(content["results"]),
        "",
        "<!-- not run: hours -->",
        "```bash",
        "scripts/prepare_evidence.sh # packages, real weights and data, below ZOO_DATA",
        f"python scripts/evidence/run.py --date {content['date']} # the same command goes on; --systems flow for some",
        f"ZOO_EVIDENCE=runs/evidence/{content['date']} python -m pytest -m evidence # checks the claims alone",
        "```",
    ]
    unfinished = [(name, seeds) for name, seeds in content["results"].items()
                  if any(not each.get("figures") for each in seeds.values())]  # fmt: skip
    if unfinished:
        lines += ["", "## Not finished", "", *(f"- {name}: {_progress(seeds)}" for name, seeds in unfinished)]
    rows = [
        [each["demo"], each["title"], each["limit"], _value(each), ", ".join(map(_number, each["seeds"])),
         f"**{each['verdict']}**" if each["verdict"].startswith(FAILED) else each["verdict"]]
        for each in sorted(claims, key=lambda each: not each["verdict"].startswith(FAILED))
    ]  # fmt: skip
    failed = {each["demo"] for each in claims if each["verdict"].startswith(FAILED)}
    if tried := [f"- {name}: {text}." for name, text in TRIED.items() if name in failed]:
        lines += ["", "## What was tried on claims that failed", "", *tried]
    columns = ["demo", "claim", "threshold", "value", "seeds", "result"]
    return "\n".join([*lines, "", "## Claims, those that failed first", "", markdown_table(columns, rows)]) + "\n"


def _progress(seeds: Mapping[str, Mapping[str, Any]]) -> str:
    done = sum(bool(each.get("figures")) for each in seeds.values())
    errors = [f"seed {seed}: {each['error']}" for seed, each in seeds.items() if each.get("error")]
    return "; ".join([f"{done} of {len(seeds)} seeds", *errors])


def _commits(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """List the seeds of each state of the folder `zoo`, the same in several commits where only others changed."""
    states: dict[str, tuple[dict[str, None], dict[str, list[str]]]] = {}
    for name, each in results.items():
        for seed, result in each.items():
            if result:
                state = " and ".join(dict.fromkeys(map(_tree, result["commits"])))
                commits, demos = states.setdefault(state, ({}, {}))
                commits |= dict.fromkeys(each or "unknown" for each in result["commits"])
                demos.setdefault(name, []).append(seed)
    return [
        f"- `zoo` at {state} (commits {', '.join(commits)}): "
        + "; ".join(f"{name} {', '.join(numbers)}" for name, numbers in demos.items())
        for state, (commits, demos) in states.items()
    ]


@functools.cache
def _tree(commit: str) -> str:
    """Return git's hash of the folder `zoo` in a commit; that of the commit where it is not at hand."""
    is_known = commit and not commit.endswith("-dirty")
    return (_git("rev-parse", "--short", f"{commit}:zoo") if is_known else None) or commit or "unknown"


def _versions(results: Sequence[Mapping[str, Any]]) -> str:
    """Describe machines and versions of the results."""
    machines = [each["machine"] for each in results]
    lines = [f"Python {each['python']}, torch {each['torch']}, lightning {each['lightning']}, one thread of "
             f"{each['processor']}" for each in machines]  # fmt: skip
    return "; ".join(dict.fromkeys(lines)) or "nothing was run."


def _describe(claim: Mapping[str, Any]) -> str:
    if claim["value"] is None:
        return "; ".join(claim["errors"])
    seeds = ", ".join(map(_number, claim["seeds"]))
    return "; ".join([f"{_value(claim)} (seeds {seeds})", *claim["errors"]])


def _value(claim: Mapping[str, Any]) -> str:
    """Format a claim's value, with more digits where it would look like the threshold that it failed."""
    text, threshold = _number(claim["value"]), claim["limit"].split()[-1]
    failed = claim["verdict"].startswith(FAILED)
    return f"{claim['value']:.4g}" if failed and text == threshold else text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _seed_folder(output: Path, demo: str, seed: int) -> Path:
    return output / demo / str(seed)


def _read_result(root: Path, quick: bool) -> dict[str, Any]:
    """Read the result of a seed; empty while it is not finished, or was made with another `quick`."""
    result = _read_json(root / RESULT)
    return result if result.get("quick") is quick else {}


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    data = json.dumps(replace_non_finite(content), indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write(data))


def _commit() -> str:
    """Return the checkout's commit, with "-dirty" where files but the page's differ from it; "" where there is none."""
    head = _git("rev-parse", "--short", "HEAD")
    if head is None:
        return ""
    written = (":!docs/evidence.*", ":!docs/gallery")
    return head + ("-dirty" if _git("diff", "--quiet", "HEAD", "--", ".", *written) is None else "")


def _git(*arguments: str) -> str | None:
    """Return what git says of the checkout; None where it fails."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def main() -> None:
    """Run the command line; it ends with 1 when a claim failed."""
    parser = argparse.ArgumentParser(description="Train every demo over fresh seeds and check the claims on them")
    parser.add_argument("--systems", nargs="+", default=[], help="or demos, such as flow/digits; all when not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, made of the date")
    parser.add_argument(
        "--date", default=time.strftime("%Y-%m-%d"), help="YYYY-MM-DD; to resume, the date of the start"
    )
    parser.add_argument("--output", type=Path, help=f"folder of the runs; {ROOT}/DATE, or DATE-quick with --quick")
    parser.add_argument("--document", type=Path, help=f"page to write, and its .json; {DOCUMENT.name} unless quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each of one thread")
    parser.add_argument("--quick", action="store_true", help="check that it runs; the figures are no evidence")
    parser.add_argument("--report", action="store_true", help="train nothing; write the page from finished seeds")
    options = vars(parser.parse_args())
    options["only_report"] = options.pop("report")
    if options["document"] is None and not options["quick"]:
        options["document"] = DOCUMENT
    try:
        content = reproduce(**options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    failed = [each for each in content["claims"] if each["verdict"].startswith(FAILED)]
    for each in failed:
        print(f"failed: {each['demo']}: {each['title']}: {_describe(each)}, threshold {each['limit']}")
    print(f"{len(failed)} of {len(content['claims'])} claims failed; see {options['document'] or REPORT}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
