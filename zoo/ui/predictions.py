"""The predictions of the page: one form a job, one after the other, and the files of their results."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.runs.inference.forms import Output
from zoo.ui.folders import Folders
from zoo.ui.processes.model_process import ModelProcess

MAX_JOBS = 20  # whose results stay
log = logging.getLogger(__name__)


@dataclass(eq=False)
class PredictionJob:
    """One form and its results."""

    name: str  # of the folder of its results
    folder: Path
    run: str  # and checkpoint that compute it, for people
    title: str  # the entered values in a few words
    state: str = "waiting"  # "computing", "done", "failed" or "cancelled"
    fraction: float = 0.0
    text: str = ""  # the progress, or why it failed
    outputs: tuple[Output, ...] = ()
    seconds: float = 0.0
    submitted: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it waits or computes."""
        return self.state in ("waiting", "computing")

    def report(self, fraction: float, text: str) -> None:
        """Note the progress."""
        self.state, self.fraction, self.text = "computing", fraction, text


class Predictions:
    """The jobs of one server, the oldest first; used by its event loop alone."""

    def __init__(self, folders: Folders, model: ModelProcess) -> None:
        self.folders = folders
        self.model = model
        self.jobs: list[PredictionJob] = []

    def submit(self, path: Path, device: str, values: Mapping[str, Any], run: str, title: str) -> PredictionJob:
        """Queue a form for a run folder or checkpoint; for the rest see `PredictionJob`."""
        name = secrets.token_hex(8)
        job = PredictionJob(name, self.folders.temp / "results" / name, run, title)
        job.folder.mkdir(parents=True)
        values = dict(values)
        for key, value in values.items():
            if isinstance(value, Path):  # an upload, which goes with its page
                values[key] = str(job.folder / key / value.name)
                (job.folder / key).mkdir()
                os.link(value, values[key])
        job.task = asyncio.create_task(self._compute(job, path, device, values))
        inactive = [each for each in self.jobs if not each.is_active]
        for old in inactive[: max(len(self.jobs) + 1 - MAX_JOBS, 0)]:
            self.jobs.remove(old)
            shutil.rmtree(old.folder, ignore_errors=True)
        self.jobs.append(job)
        return job

    def cancel(self, job: PredictionJob) -> None:
        """End a job that waits or computes."""
        if job.task is not None:
            job.task.cancel()

    async def _compute(self, job: PredictionJob, path: Path, device: str, values: Mapping[str, Any]) -> None:
        try:
            outputs, job.seconds = await self.model.predict(path, device, values, job.folder, job.report)
            job.outputs, job.fraction, job.text, job.state = tuple(outputs), 1.0, "", "done"
        except asyncio.CancelledError:
            job.text, job.state = "", "cancelled"
        except (ValueError, OSError) as error:
            job.text, job.state = " ".join(str(error).replace(f"{job.folder}/", "").split()), "failed"
        except Exception:
            log.exception("a prediction with %s failed", job.run)
            job.text, job.state = "an error of the page; its console shows the traceback", "failed"
