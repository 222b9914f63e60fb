"""Training's reading of shards: python -m scripts.bench.shards reading|stores|resume|all [--quick].

Beside the package webdataset (extra `dev`) on local files, and over HTTP and S3 on servers of this machine, whose
network costs nothing: ratios of stores tell what the way costs in processor time and round trips, not what a link does.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from scripts.bench.tools import Finding, Settings, command, in_folders, interleave, median, ratios, times_as_fast
from zoo.audio.corpora.sharded import ShardCorpus, ShardSource, prepare
from zoo.audio.io.shards import CLEAN, DEGRADED, ShardWriter
from zoo.audio.io.stores import Patience

RATE = 16000
BATCH = 16
PATIENCE = Patience(timeout_seconds=60)


def reading(settings: Settings) -> list[Finding]:
    """Samples a second of local shards, both recordings decoded, beside webdataset's pipeline, by turns."""
    count = write(settings.folder / "shards", settings.few(1500, 60))
    ours = open_corpora(str(settings.folder / "shards"), settings.folder / "cache")
    contestants = {
        "ours, samples at random": lambda: read(ours, np.random.default_rng(0).permutation(count)),
        "webdataset, buffer of 500": lambda: exhaust(webdataset(settings.folder / "shards")),
    }
    costs = interleave(contestants, settings.few(7, 1))
    speed = {f"{name}, samples/s": count / median(each).wall for name, each in costs.items()}
    return [times_as_fast("reading local shards", costs, samples=count, **speed)]


def stores(settings: Settings) -> list[Finding]:
    """Samples a second from disk, HTTP and S3 (moto), by turns, in batches of 16 and one process."""
    folder = settings.folder / "shards"
    count = write(folder, settings.few(600, 60))
    with served(_http, folder) as url, served(_s3, folder) as variables:
        os.environ.update(variables)
        places = {"disk": str(folder), "HTTP": url, "S3": "s3://speech/shards"}
        corpora = {name: open_corpora(place, settings.folder / "cache") for name, place in places.items()}
        order = np.random.default_rng(0).permutation(count)
        contestants: dict[str, Callable[[], object]] = {
            name: lambda each=each: read(each, order)
            for name, each in corpora.items()  # type: ignore[misc]
        }
        costs = interleave(contestants, settings.few(5, 1))
    findings = []
    for name in ("HTTP", "S3"):
        speed = {f"{each}, samples/s": count / median(costs[each]).wall for each in ("disk", name)}
        ratio = ratios(costs["disk"], costs[name])
        details = {**speed, "by processor time": ratio.cpu, "rounds": len(costs[name])}
        findings.append(Finding(f"throughput of {name} to disk", ratio.wall, "x", details=details))
    return findings


def resume(settings: Settings) -> list[Finding]:
    """Going on at nine tenths of an epoch: the time to the next sample, and whether it is the right one."""
    folder = settings.folder / "shards"
    count = write(folder, settings.few(1500, 60))
    place = int(0.9 * count)
    ours = open_corpora(str(folder), settings.folder / "cache")
    order = np.random.default_rng(0).permutation(count)
    seconds: dict[str, list[float]] = {"ours": [], "webdataset": []}
    whole = [key for key, _, _ in webdataset(folder)]
    right = {"ours": True, "webdataset": True}
    for _ in range(settings.few(5, 1)):
        began = time.perf_counter()
        sample = ours[0].source.sample(int(order[place]))
        ours[0].read(int(order[place]))
        seconds["ours"].append(time.perf_counter() - began)
        right["ours"] &= sample.key == ours[0].names[order[place]]
        ours[0].source.prefetch([])
        began = time.perf_counter()
        key = next(islice(webdataset(folder), place, None))[0]
        seconds["webdataset"].append(time.perf_counter() - began)
        right["webdataset"] &= key == whole[place]
    ratio = float(np.median(np.divide(seconds["webdataset"], seconds["ours"])))
    details: dict[str, Any] = {f"{name}, ms": 1000 * float(np.median(each)) for name, each in seconds.items()}
    details |= {f"{name}, right": yes for name, yes in right.items()}
    details["webdataset with 2 workers, order as with none"] = keys_of_workers(folder, 2) == whole
    return [Finding("webdataset's time to resume to ours", ratio, "x", details=details)]


def write(folder: Path, count: int) -> int:
    """Write shards of pairs of a second."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder, max_samples=100) as writer:
        for number in range(count):
            audio = [0.1 * rng.standard_normal(RATE) for _ in range(2)]
            writer.write(
                f"u{number:06d}_0", {f"{s}.wav": _wav(a) for s, a in zip((CLEAN, DEGRADED), audio, strict=True)}
            )
    return count


def _wav(audio: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, audio, RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def open_corpora(shards: str, cache: Path) -> tuple[ShardCorpus, ShardCorpus]:
    """Both recordings of shards, as training opens them."""
    source = ShardSource(prepare(shards, cache, PATIENCE, 0.0), PATIENCE, 0.0)
    return ShardCorpus(source, CLEAN, RATE), ShardCorpus(source, DEGRADED, RATE)


def read(corpora: tuple[ShardCorpus, ShardCorpus], order: np.ndarray) -> None:
    """Read and decode all samples in an order, batch by batch, as the loaders of training do."""
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        corpora[0].prefetch(batch)
        for number in batch:
            for corpus in corpora:
                corpus.read(int(number))


def pipeline(folder: Path) -> Any:
    """The pipeline of webdataset's own documentation: shards shuffled, a buffer of samples, audio decoded."""
    import webdataset as wds

    shards = sorted(map(str, folder.glob("*.tar")))
    return wds.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(500, seed=0).map(_decode)


def webdataset(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Its samples in one process."""
    return iter(pipeline(folder))


def _decode(sample: dict[str, Any]) -> tuple[str, np.ndarray, np.ndarray]:
    clean, degraded = (
        soundfile.read(io.BytesIO(sample[f"{stem}.wav"]), dtype="float32")[0] for stem in (CLEAN, DEGRADED)
    )
    return sample["__key__"], clean, degraded


def keys_of_workers(folder: Path, workers: int) -> list[str]:
    """The order in which a loader with workers gives webdataset's samples."""
    from torch.utils.data import DataLoader

    return [key for key, _, _ in DataLoader(pipeline(folder), batch_size=None, num_workers=workers)]


def exhaust(samples: Iterator[Any]) -> None:
    """Go through all."""
    for _ in samples:
        pass


@contextmanager
def served(serve: Callable[[Connection, Path], None], folder: Path) -> Iterator[Any]:
    """A store in a process of its own; yields what it sends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, folder), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join(10)


def _http(pipe: Connection, folder: Path) -> None:
    from tests.cluster.stores import http_store

    with http_store(folder) as store:
        pipe.send(f"{store.url}/")
        pipe.recv()


def _s3(pipe: Connection, folder: Path) -> None:
    from tests.cluster.stores import s3_store

    with s3_store() as variables:
        os.environ.update(variables)
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="speech")
        for path in folder.iterdir():
            client.upload_file(str(path), "speech", f"shards/{path.name}")
        pipe.send(variables)
        pipe.recv()


BENCHMARKS = {"reading": reading, "stores": stores, "resume": resume}

if __name__ == "__main__":
    command("shards", in_folders(BENCHMARKS, lambda folder, quick: Settings(lambda _: None, folder, quick)))
