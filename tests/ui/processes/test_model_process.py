"""The loaded model: on a real run, and with stand-ins that fail in all ways."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.harness import RUNS, environment
from zoo.ui.folders import Folders
from zoo.ui.predictions import MAX_JOBS, PredictionJob, Predictions
from zoo.ui.processes.model_process import ModelProcess

# A worker that does what the field says.
STAND_IN = """
import json, os, sys, time
order = json.loads(sys.stdin.readline())
if "broken" in order["path"]:
    print(json.dumps({"error": "it is corrupt"}), flush=True); sys.exit(1)
print(json.dumps({"fields": [{"name": "text", "label": "Text", "kind": "text"}]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    text = request["values"]["text"]
    print(json.dumps({"progress": 0.5, "text": "half"}), flush=True)
    if text == "wait": time.sleep(60)
    if text == "killed": os.kill(os.getpid(), 9)
    if text == "crash": sys.exit("a library's last words")
    if text == "wrong":
        print(json.dumps({"error": request["folder"] + "/a.wav: wrong"}), flush=True); continue
    output = {"kind": "text", "title": "Result", "data": f"{text} {os.getpid()}"}
    print(json.dumps({"outputs": [output], "seconds": 0.1}), flush=True)
"""


@pytest.fixture
def run(folders: Folders) -> Path:
    folder = folders.runs / "flow/smoke/1"
    folder.mkdir(parents=True)
    (folder / "step_00000001.ckpt").touch()
    return folder


def with_model(folders: Folders, test: Callable[[Predictions], Awaitable[None]]) -> None:
    (folders.work / "stand_in_worker.py").write_text(STAND_IN)

    async def main() -> None:
        model = ModelProcess(environment(PYTHONPATH=str(folders.work)), folders.temp, "stand_in_worker")
        try:
            await test(Predictions(folders, model))
        finally:
            await model.close()

    asyncio.run(main())


async def finish(predictions: Predictions, run: Path, *texts: str) -> list[PredictionJob]:
    jobs = [predictions.submit(run, "cpu", {"text": text}, "run", text) for text in texts]
    await asyncio.gather(*[job.task for job in jobs if job.task])
    return jobs


def test_a_failure_has_a_reason_and_the_next_form_is_computed(folders: Folders, run: Path) -> None:
    async def test(predictions: Predictions) -> None:
        *failed, done = await finish(predictions, run, "wrong", "killed", "crash", "b")
        reasons = "a.wav: wrong", "too little memory", "a library's last words"
        for job, reason in zip(failed, reasons, strict=True):
            assert job.state == "failed" and reason in job.text and str(folders.temp) not in job.text
        assert done.state == "done"

    with_model(folders, test)


def test_cancelling_ends_what_computes_and_what_waits(folders: Folders, run: Path) -> None:
    async def test(predictions: Predictions) -> None:
        jobs = [predictions.submit(run, "cpu", {"text": text}, "run", text) for text in ("wait", "b", "c")]
        while jobs[0].text != "half":
            await asyncio.sleep(0.05)
        assert [job.state for job in jobs] == ["computing", "waiting", "waiting"]
        predictions.cancel(jobs[1])
        predictions.cancel(jobs[0])
        await asyncio.gather(*[job.task for job in jobs if job.task])
        assert [job.state for job in jobs] == ["cancelled", "cancelled", "done"]

    with_model(folders, test)


def test_another_checkpoint_device_or_newer_file_is_loaded_anew(folders: Folders, run: Path) -> None:
    async def test(predictions: Predictions) -> None:
        pids = []
        for path, device, step in (
            (run, "cpu", 1),
            (run, "cpu", 1),
            (run, "auto", 1),
            (run, "auto", 2),
            (run / "step_00000001.ckpt", "auto", 2),
        ):
            if not (run / f"step_0000000{step}.ckpt").exists():
                (run / f"step_0000000{step}.ckpt").touch()
            job = predictions.submit(path, device, {"text": "a"}, "run", "")
            await asyncio.gather(job.task)  # type: ignore[arg-type]
            pids.append(job.outputs[0].data)
        assert len(set(pids)) == 4
        broken = folders.runs / "broken"
        broken.mkdir()
        with pytest.raises(ValueError, match="no checkpoint"):
            await predictions.model.load(broken, "cpu")
        (broken / "step_00000001.ckpt").touch()
        with pytest.raises(ValueError, match="it is corrupt"):
            await predictions.model.load(broken, "cpu")

    with_model(folders, test)


def test_a_job_keeps_its_upload_and_the_oldest_jobs_go(folders: Folders, run: Path) -> None:
    async def test(predictions: Predictions) -> None:
        await finish(predictions, run, *map(str, range(MAX_JOBS + 3)))
        key = folders.store_upload("a.wav", io.BytesIO(b"RIFF"))
        job = predictions.submit(run, "cpu", {"text": "x", "input": folders.upload(key)}, "run", "")
        folders.delete_uploads({key})
        assert job.task is not None
        await job.task
        assert (job.folder / "input" / "a.wav").read_bytes() == b"RIFF" and job.state == "done"
        await finish(predictions, run, "more")
        assert len(predictions.jobs) == MAX_JOBS
        assert {path.name for path in (folders.temp / "results").iterdir()} == {job.name for job in predictions.jobs}

    with_model(folders, test)


@pytest.mark.parametrize(("run", "reply"), [("flow/points", b'"fields"'), ("", b'"error"')])
def test_the_worker_ends_with_the_server(run: str, reply: bytes) -> None:
    """However the server ends, the pipe is closed; after a run that cannot be loaded it ends by itself."""
    order = json.dumps({"path": str(RUNS / run), "device": "cpu", "allow_import": []}).encode() + b"\n"
    command = [sys.executable, "-m", "zoo.ui.processes.model_worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin and child.stdout and child.stderr
        child.stdin.write(order)
        child.stdin.flush()
        assert reply in child.stdout.readline()
        if reply == b'"fields"':
            child.stdin.close()
        assert child.wait(30) == 0 and b"Fatal" not in child.stderr.read()
