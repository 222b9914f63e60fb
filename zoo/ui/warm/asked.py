"""What sessions have asked of trained systems: one answer, one for each of several files, or a folder of the server.

A page begins a job and looks at it now and then; a job goes on when the page is loaded anew, and ends with its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zoo.common.journal import Journal
from zoo.runs.inference.forms import FILE_OUTPUTS, InputField, Output
from zoo.runs.run_info import tail_lines
from zoo.ui.jobs.commands import Commands, last_error
from zoo.ui.places import Places, choose
from zoo.ui.store import KEPT_JOBS, Store
from zoo.ui.warm.pool import NEWEST, Failed, Finished, Progress, Workers

KEPT = 20  # jobs of a session; the files of the last few of them
PREDICTIONS_NAME = "predictions"
ARCHIVE_NAME = "results.zip"
ACTIVE = ("waiting", "working")
_SHOWN_ROWS = 500
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """One thing that a session asked for; the thread that computes writes it, pages read it.

    Args:
        name: of its results in the store.
        title: what was asked, in a few words.
        state: "waiting", "working", "done", "failed" or "cancelled".
        text: how far it is, or why it failed.
        question: what a person said, where the system talks; else "".
        uploads: files that it reads.
    """

    name: str
    folder: Path
    run: str
    title: str
    question: str = ""
    uploads: frozenset[Path] = frozenset()
    state: str = "waiting"
    fraction: float = 0.0
    text: str = ""
    parts: tuple[Output, ...] = ()
    seconds: float = 0.0
    begun: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def active(self) -> bool:
        """Whether it waits or is computed."""
        return self.state in ACTIVE

    @property
    def kept(self) -> bool:
        """Whether its files are still there, if it has any."""
        return self.active or self.folder.is_dir() or not any(part.kind in FILE_OUTPUTS for part in self.parts)


class _CancelledError(Exception):
    pass


class Asked:
    """The jobs of all sessions of a server."""

    def __init__(self, places: Places, store: Store, workers: Workers, commands: Commands) -> None:
        self.places = places
        self.store = store
        self.workers = workers
        self.commands = commands
        self._jobs: dict[str, list[Job]] = {}
        self._lock = threading.Lock()
        self._bulk = threading.Lock()  # one folder at a time
        self._openers = ThreadPoolExecutor(16, "opening")

    async def fields(self, run: str, checkpoint: str) -> tuple[InputField, ...]:
        """What a run may be asked; loads it, beside the threads that serve pages.

        Raises:
            ValueError: it cannot be loaded.
        """
        return await asyncio.get_running_loop().run_in_executor(self._openers, self.workers.fields, run, checkpoint)

    def of(self, session: str) -> list[Job]:
        """A session's jobs, the oldest first."""
        with self._lock:
            return [job for job in self._jobs.get(session, ()) if job.kept][-KEPT:]

    def begin(
        self,
        session: str,
        run: str,
        checkpoint: str,
        values: Sequence[Mapping[str, Any]],
        title: str,
        question: str = "",
    ) -> Job:
        """Have one answer computed, or several that become one zip file.

        Args:
            values: one set for each answer, see `Workers.ask`; of several sets the files tell them apart.
            title: what is asked, for people.
            question: what a person said, where the system talks.

        Raises:
            ValueError: the session has as many jobs under way as it may.
        """
        uploads = [[value for value in each.values() if isinstance(value, Path)] for each in values]

        def compute(job: Job) -> tuple[Output, ...]:
            if len(values) > 1:
                return self._batch(job, session, checkpoint, list(zip(values, uploads, strict=True)))
            event = self._ask(job, session, checkpoint, values[0], job.folder)
            if isinstance(event, Failed):
                raise ValueError(event.error)
            job.seconds = event.seconds
            return event.parts

        read = frozenset(path for paths in uploads for path in paths)
        return self._begin(session, compute, run=run, title=title, question=question, uploads=read)

    def begin_folder(self, session: str, run: str, checkpoint: str, source: str, suffixes: Sequence[str]) -> Job:
        """Have all files of a folder computed by `zoo predict`, into the run's own folder.

        Args:
            source: one of `folders`.
            suffixes: of the files to count for the progress; none where that is not known.

        Raises:
            ValueError: there is no such folder, run or checkpoint, or the session has as many jobs as it may.
        """
        given = choose(self.folders(), source, "folder")
        folder = self.places.run(run)
        path = folder if checkpoint == NEWEST else self.places.checkpoint(run, checkpoint)

        def compute(job: Job) -> tuple[Output, ...]:
            total = sum(each.suffix.lower() in suffixes for each in given.rglob("*"))
            target = folder / PREDICTIONS_NAME / time.strftime(f"%Y%m%d-%H%M%S-{job.name[:4]}")
            job.text = "waiting until another folder is done"
            while not self._bulk.acquire(timeout=0.5):
                _check_wanted(job)
            try:
                return self._folder(job, ("--ckpt_path", str(path), "--input", str(given)), target, total)
            finally:
                self._bulk.release()

        return self._begin(session, compute, run=run, title=f"all of {source}")

    def folders(self) -> dict[str, Path]:
        """Folders that may be computed as a whole, by name: of data sets, and runs."""
        data = {f"data: {name}": path for name, path in self.places.data_folders().items()}
        return data | {f"run: {name}": self.places.run(name) for name in self.places.list_runs()}

    def cancel(self, job: Job) -> None:
        """End a job."""
        job.stop.set()
        self.workers.cancel(job.token)

    def forget(self, session: str, key: str) -> None:
        """Delete an upload that no job reads any more."""
        with contextlib.suppress(ValueError):
            path = self.store.owned(session, key)
            if not any(job.active and path in job.uploads for job in self.of(session)):
                self.store.forget(session, key)

    def end(self, session: str) -> None:
        """End all jobs of a session."""
        with self._lock:
            jobs = self._jobs.pop(session, [])
        for job in jobs:
            self.cancel(job)

    def _begin(self, session: str, compute: Callable[[Job], tuple[Output, ...]], **about: Any) -> Job:
        with self._lock:
            mine = self._jobs.setdefault(session, [])
            busy = [job.name for job in mine if job.active]
            if len(busy) >= KEPT_JOBS:
                raise ValueError(f"{len(busy)} of your predictions are under way already; wait for one or cancel it")
            name, folder = self.store.new_job(session, busy)
            job = Job(name, folder, **about)
            mine[:] = [*[each for each in mine if each.kept][1 - KEPT :], job]
        threading.Thread(target=self._run, args=(job, compute), daemon=True).start()
        return job

    def _run(self, job: Job, compute: Callable[[Job], tuple[Output, ...]]) -> None:
        try:
            job.parts = compute(job)
            job.fraction, job.text, state = 1.0, "", "done"
        except _CancelledError:
            job.text, state = "cancelled", "cancelled"
        except (ValueError, OSError) as error:
            job.text, state = " ".join(str(error).split()), "failed"
        except Exception:
            log.exception("a prediction with %s failed", job.run)
            job.text, state = "the server could not do it; what it printed says why", "failed"
        job.state = state  # last: whoever sees it finds the rest

    def _ask(
        self,
        job: Job,
        session: str,
        checkpoint: str,
        values: Mapping[str, Any],
        folder: Path,
        share: Callable[[float, str], tuple[float, str]] = lambda fraction, text: (fraction, text),
    ) -> Finished | Failed:
        """The answer to one set of values; `share` makes its progress that of the job."""
        _check_wanted(job)
        events: Any = self.workers.ask(job.run, checkpoint, values, folder, session, job.token)
        with contextlib.closing(events):
            for event in events:
                if isinstance(event, Progress):
                    _check_wanted(job)
                    job.fraction, job.text = share(event.fraction, event.text)
                    job.state = "waiting" if event.position else "working"
                elif isinstance(event, Failed) and event.cancelled:
                    raise _CancelledError
                else:
                    return event
        raise ValueError("the process that computes gave no answer")

    def _batch(
        self, job: Job, session: str, checkpoint: str, asked: Sequence[tuple[Mapping[str, Any], Sequence[Path]]]
    ) -> tuple[Output, ...]:
        """One answer after the other; their files in one zip."""
        rows: list[list[str]] = []
        made = job.folder.parent / ARCHIVE_NAME
        try:
            with zipfile.ZipFile(made, "w") as archive:
                for number, (values, files) in enumerate(asked):
                    name = files[0].name if files else str(number + 1)
                    self._check_room()

                    def share(fraction: float, text: str, number: int = number, name: str = name) -> tuple[float, str]:
                        return (number + fraction) / len(asked), f"{number + 1} of {len(asked)}, {name}: {text}"

                    with _fresh(job.folder.parent / "one") as folder:
                        event = self._ask(job, session, checkpoint, values, folder, share)
                        if isinstance(event, Failed):
                            rows.append([name, "failed", event.error])
                            continue
                        rows.append([name, "done", f"{event.seconds:.2f} s"])
                        job.seconds += event.seconds
                        _pack(archive, f"{number + 1:02d}_{Path(name).stem}", event.parts, folder)
            if all(state == "failed" for _, state, _ in rows):
                raise ValueError(rows[0][2])
            made.rename(job.folder / ARCHIVE_NAME)
        finally:
            made.unlink(missing_ok=True)
        table = {"columns": ["File", "State", "Note"], "rows": rows}
        return Output("file", "All results", ARCHIVE_NAME), Output("table", "Files", data=table)

    def _check_room(self) -> None:
        if not self.store.room():
            raise ValueError("there is no room for more results on the server; end other pages, or use zoo predict")

    def _folder(self, job: Job, args: Sequence[str], target: Path, total: int) -> tuple[Output, ...]:
        """`zoo predict` to its end; its manifest says how far it is, and becomes the list of results."""
        console = job.folder.parent / "console.txt"
        code: int | None = None
        job.state, job.text = "working", "starting"
        steps: Any = self.commands.follow(console, "predict", *args, "--output", str(target))
        with contextlib.closing(steps):
            for code in steps:  # noqa: B007, the last one counts
                _check_wanted(job)
                rows = _rows(target)
                job.text = f"{len(rows)} of {total} files" if total else f"{len(rows)} files"
                job.fraction = min(len(rows) / total, 1.0) if total else 0.0
        rows = _rows(target)
        if code != 0 and not rows:
            raise ValueError(last_error(tail_lines(console, 200)))
        job.seconds = time.time() - job.begun
        place = target.relative_to(self.places.runs).as_posix()
        shown = [[str(row["target"]), row["status"], str(row.get("error") or "")] for row in rows[:_SHOWN_ROWS]]
        failed = sum(row["status"] == "failed" for row in rows)
        said = (
            f"{len(rows) - failed} of {len(rows)} files are done. The results lie in {place}, below the folder of runs."
        )
        table = Output("table", "Results", data={"columns": ["Result", "State", "Note"], "rows": shown})
        return Output("text", "Folder", data=said), table


def _check_wanted(job: Job) -> None:
    if job.stop.is_set():
        raise _CancelledError


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """An empty folder for a while."""
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pack(archive: zipfile.ZipFile, name: str, parts: Sequence[Output], folder: Path) -> None:
    """Put an answer into a zip: its files, and the rest as JSON."""
    for part in parts:
        if part.kind in FILE_OUTPUTS:
            archive.write(folder / part.name, f"{name}/{part.name}")
    said = [asdict(part) for part in parts if part.kind not in FILE_OUTPUTS]
    if said:
        archive.writestr(f"{name}/answer.json", json.dumps(said, indent=2))


def _rows(target: Path) -> list[dict[str, Any]]:
    """The outcomes that a bulk prediction has recorded so far, see `zoo.runs.inference.predict`."""
    rows = [row for path in sorted(target.glob("manifest*.jsonl")) for row in Journal(path).read()]
    found = {row["target"]: row for row in rows if isinstance(row, dict) and {"target", "status"} <= row.keys()}
    return [row for row in found.values() if row["status"] in ("done", "failed")]
