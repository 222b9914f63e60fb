"""Shards read where they lie, from disk, HTTP and S3: the same samples from each, and the faults of stores survived."""

from __future__ import annotations

import io
import json
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tests.cluster.stores import HttpStore, http_store, s3_store
from tests.harness import REPOSITORY, TOY_ARGS, fingerprint, forked, good, losses, newest
from zoo.audio.corpora.sharded import ShardCorpus, ShardSource, SkippedSampleError, prepare
from zoo.audio.corpora.unpack import unpack_shards
from zoo.audio.io import stores
from zoo.audio.io.shards import CLEAN, DEGRADED, ShardReader, ShardWriter, expand, index_shards, read_index
from zoo.audio.io.stores import Patience, Url, place
from zoo.miipher.data.datamodule import SpeechData

pytestmark = pytest.mark.cluster
SAMPLES, IN_SHARD, RATE = 24, 6, 16000
PATIENCE = Patience(timeout_seconds=10, retries=2, pause_seconds=0.02)
HURRIED = Patience(timeout_seconds=1, retries=2, pause_seconds=0.02)


def wav(samples: int, pitch: float, seed: int) -> bytes:
    buffer = io.BytesIO()
    audio = 0.4 * np.sin(np.arange(samples) * pitch) + 0.01 * np.random.default_rng(seed).standard_normal(samples)
    soundfile.write(buffer, audio, RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def write(folder: Path, compress: bool = False) -> Path:
    with ShardWriter(folder, max_samples=IN_SHARD, compress=compress) as writer:
        for i in range(SAMPLES):
            clean, degraded = wav(1500 + 40 * i, 0.05, i), wav(1500 + 40 * i, 0.11, i)
            writer.write(f"spk{i % 3}/日 {i}_0", {"speech.wav": clean, "degraded_speech.wav": degraded, "json": b"{}"})
    return folder


def name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def corpus(
    shards: str, cache: Path, stem: str = CLEAN, share: float = 0.3, patience: Patience = PATIENCE
) -> ShardCorpus:
    return ShardCorpus(ShardSource(prepare(shards, cache, patience, share), patience, share), stem, RATE)


def clips(corpus: ShardCorpus) -> list[np.ndarray]:
    """All clips; None where one is skipped."""
    found = []
    for number in range(len(corpus.lengths)):
        try:
            found.append(corpus.read(number))
        except SkippedSampleError:
            found.append(None)
    return found


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HttpStore]:
    with http_store(write(tmp_path / "shards")) as made:
        yield made


@pytest.fixture
def truth(store: HttpStore, tmp_path: Path) -> list[np.ndarray]:
    return clips(corpus(str(store.folder), tmp_path / "truth"))


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_store() as variables:
        yield variables


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_ranges_bring_what_files_hold(store: HttpStore, truth: list[np.ndarray], tmp_path: Path) -> None:
    for number, shards in enumerate((f"{store.url}/", f"{store.url}/shard-{{000000..000003}}.tar")):
        remote = corpus(shards, tmp_path / str(number))
        assert same(clips(remote), truth)
        degraded = clips(ShardCorpus(remote.source, DEGRADED, RATE))
        assert same(degraded, clips(corpus(str(store.folder), tmp_path / "truth", DEGRADED)))
    order = np.random.default_rng().permutation(SAMPLES)[:9]
    print("asked for", order)
    store.seen.clear()
    remote.source._read.clear()
    remote.prefetch(order)
    sizes = {int(remote.source.rows["size"][i]) for i in order}
    asked = [tuple(map(int, ask.removeprefix("bytes=").split("-"))) for _, ask in store.seen]
    assert len(asked) == len(order) and {stop + 1 - start for start, stop in asked} == sizes  # nothing but the samples
    assert all(np.array_equal(remote.read(i), truth[i]) for i in order)


def test_s3_brings_what_files_hold(
    store: HttpStore, truth: list[np.ndarray], s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    import boto3

    for key, value in s3.items():
        monkeypatch.setenv(key, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="speech")
    for path in store.folder.iterdir():
        client.upload_file(str(path), "speech", f"a b/{path.name}")
    for number, shards in enumerate(("s3://speech/a b", "s3://speech/a b/shard-{000000..000003}.tar")):
        assert same(clips(corpus(shards, tmp_path / str(number))), truth)
    client.delete_object(Bucket="speech", Key=f"a b/{name(1)}")
    lacking = clips(corpus("s3://speech/a b", tmp_path / "0"))
    assert [clip is None for clip in lacking] == [i // IN_SHARD == 1 for i in range(SAMPLES)]
    assert len(lines(caplog)) == 1 and name(1) in caplog.text and "hidden" not in caplog.text
    with pytest.raises(FileNotFoundError, match=r"s3://speech/none: no shards here, expected index\.json"):
        expand("s3://speech/none")


def test_shards_of_others_are_tabled_once(store: HttpStore, truth: list[np.ndarray], tmp_path: Path) -> None:
    for path in store.folder.glob("*.json"):
        path.unlink()
    pattern = f"{store.url}/shard-{{000000..000003}}.tar"
    assert same(clips(corpus(pattern, tmp_path / "c")), truth)
    store.seen.clear()
    assert same(clips(corpus(pattern, tmp_path / "c")), truth)
    again = [path for path, ask in store.seen if path.endswith(".tar") and ask.endswith(str(2**23 - 1))]
    assert not again, "a shard was read whole again"
    assert index_shards(store.folder) == 4
    fresh = write(tmp_path / "fresh")
    for path in fresh.iterdir():
        assert (store.folder / path.name).read_bytes() == path.read_bytes()


def test_compressed_shards_are_unpacked_once(truth: list[np.ndarray], tmp_path: Path) -> None:
    with http_store(write(tmp_path / "zipped", compress=True)) as zipped:
        assert same(clips(corpus(zipped.url, tmp_path / "c")), truth)
        zipped.faults["*"] = ("404", -1)
        zipped.faults["index.json"] = ("", 0)
        assert same(clips(corpus(zipped.url, tmp_path / "c")), truth)


@pytest.mark.parametrize(("fault", "times"), [("500", 2), ("drop", 2), ("slow", 1)])
def test_what_passes_is_tried_again(
    store: HttpStore, truth: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, times: int
) -> None:
    remote = corpus(store.url, tmp_path / "c", patience=HURRIED if fault == "slow" else PATIENCE)
    store.faults[name(2)] = (fault, times)
    assert same(clips(remote), truth)
    assert store.spoiled[name(2)] == times and not lines(caplog)


@pytest.mark.parametrize("fault", ["500", "drop", "slow", "404", "redirect"])
def test_a_shard_that_fails_is_skipped_in_one_line(
    store: HttpStore, truth: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    remote = corpus(store.url, tmp_path / "c", patience=HURRIED if fault == "slow" else PATIENCE)
    bad = random.randrange(4)
    print("bad shard", bad)
    store.faults[name(bad)] = (fault, -1)
    remote.prefetch(range(SAMPLES))
    found = clips(remote)
    for i in range(SAMPLES):
        assert found[i] is None if i // IN_SHARD == bad else np.array_equal(found[i], truth[i])
    (line,) = lines(caplog)
    assert name(bad) in line and "6 of 24 samples" in line and "hidden" not in line
    store.faults.clear()  # a run that begins anew sees everything again
    assert same(clips(corpus(store.url, tmp_path / "c")), truth)
    store.faults[name(bad)] = (fault, -1)
    strict = corpus(store.url, tmp_path / "c", share=0.2, patience=HURRIED if fault == "slow" else PATIENCE)
    with pytest.raises(ValueError, match=rf"more than the allowed share of 0\.2 \(max_bad_share\).*{name(bad)}"):
        strict.prefetch(range(SAMPLES))


def test_altered_and_cut_shards(store: HttpStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remote = corpus(store.url, tmp_path / "c")
    whole = (store.folder / name(1)).read_bytes()
    (store.folder / name(1)).write_bytes(whole[:-2000])
    altered = bytearray((store.folder / name(3)).read_bytes())
    altered[1024] ^= 1  # in the first sample's audio
    (store.folder / name(3)).write_bytes(altered)
    found = clips(remote)
    assert [i for i in range(SAMPLES) if found[i] is None] == [*range(IN_SHARD, 2 * IN_SHARD), 3 * IN_SHARD]
    assert len(lines(caplog)) == 2 and f"has {len(whole) - 2000} bytes where {len(whole)}" in caplog.text
    for path in store.folder.glob("*.offsets.json"):
        path.unlink()
    caplog.clear()
    skipping = corpus(store.url, tmp_path / "d", share=0.5)  # without tables both are read whole, and found wanting
    found = clips(skipping)
    assert [i for i in range(SAMPLES) if found[i] is None] == [
        *range(6, 12),
        *range(18, 24),
    ]  # the others' numbers stay
    assert len(lines(caplog)) == 2 and caplog.text.count("sha256") == 2
    (store.folder / name(1)).write_bytes(whole)
    assert clips(corpus(store.url, tmp_path / "d", share=0.5))[7] is not None


def test_a_server_without_ranges_is_read_whole_once(
    store: HttpStore, truth: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.faults["*"] = ("no-ranges", -1)
    remote = corpus(store.url, tmp_path / "c")
    assert same(clips(remote), truth)
    assert len(lines(caplog)) == 4 and all("has no ranges" in line for line in lines(caplog))
    store.faults = {name(i): ("404", -1) for i in range(4)}
    assert same(clips(corpus(store.url, tmp_path / "c")), truth)


@pytest.mark.parametrize(
    "entry",
    ["../secret.tar", "/etc/a.tar", "file:///etc/a.tar", "http://other/a.tar", "s3://b/a.tar", "a\\b.tar", "a//b"],
)
def test_an_index_names_nothing_outside_its_folder(store: HttpStore, tmp_path: Path, entry: str) -> None:
    index = store.folder / "index.json"
    content = json.loads(index.read_text())
    content["shards"][0]["name"] = entry
    index.write_text(json.dumps(content))
    for shards in (store.url, store.folder):
        with pytest.raises(ValueError, match="no index of shards"):
            expand(str(shards))


def test_tables_are_not_trusted(store: HttpStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = store.folder / f"{name(0)}.offsets.json"
    content = json.loads(table.read_text())
    for row in ([2**40, 512], [-512, 512], [0, 2**40], ["0", 512], [0, 0]):
        altered = json.loads(json.dumps(content))
        altered["samples"][2][1:3] = row
        table.write_text(json.dumps(altered))
        caplog.clear()
        assert len(corpus(store.url, tmp_path / f"c{row}").lengths) == SAMPLES
        assert len(lines(caplog)) == 1 and "no table of a shard" in caplog.text
    for swapped in (content["samples"][3][1:4], [*content["samples"][2][1:3], 7]):
        altered = json.loads(json.dumps(content))
        altered["samples"][2][1:4] = swapped
        table.write_text(json.dumps(altered))
        found = clips(corpus(store.url, tmp_path / f"d{swapped[2]}"))
        assert [i for i in range(SAMPLES) if found[i] is None] == [2]


def test_addresses_hold_no_secrets(store: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (
        "https://me:hidden@host/a.tar",
        "https://host/a.tar?sig=hidden",
        "s3://hidden@bucket/a",
        "http://h/a#hidden",
    ):
        with pytest.raises(ValueError, match="ZOO_STORE_QUERY") as caught:
            place(text)
        assert "hidden" not in str(caught.value)
    for text in ("file:///etc/passwd", "ftp://host/a.tar", "gs://bucket/a"):
        with pytest.raises(ValueError, match="begins with http://, https://, s3://"):
            place(text)
    with pytest.raises(ValueError, match="names no host"):
        place("http:///a.tar")
    monkeypatch.setenv("ZOO_STORE_QUERY", "?sig=hidden%2Fsecret")
    with pytest.raises(FileNotFoundError) as nothing:
        expand(f"{store.url}/none/")
    (refused,) = stores.facts([Url(f"{store.url}/none.tar")], PATIENCE)
    assert all(path.endswith("?sig=hidden%2Fsecret") for path, _ in store.seen)
    prepare(store.url, tmp_path / "c", PATIENCE, 0.1)
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "c").rglob("*") if path.is_file())
    assert "hidden" not in f"{nothing.value}{refused}{kept}"


def test_the_extra_is_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match=r"need aiohttp: pip install 'zoo\[cloud\]'"):
        read_index(Url("http://127.0.0.1:9/a"))


def test_sequential_reading_and_unpacking(store: HttpStore, tmp_path: Path) -> None:
    reader = ShardReader(store.url)
    reader.verify()
    assert [s.key for s in reader] == [s.key for s in ShardReader(store.folder)]
    assert unpack_shards(store.url, tmp_path / "out", progress=False)["pairs"] == SAMPLES
    assert len(list((tmp_path / "out" / "clean").rglob("*.wav"))) == SAMPLES


def batches(shards: str, cache: Path, workers: int = 0, start: int = 0) -> list[dict[str, torch.Tensor]]:
    """The batches of an epoch from batch `start` on."""
    data = SpeechData(
        shards=shards, val_items=2, max_seconds=1.0, batch_size=4, num_workers=workers, cache=str(cache),
        max_bad_share=0.5, read_retries=1,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    data._position = (0, start)
    return list(data.train_dataloader())


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[key], second[key]) for key in first)


def test_training_resumes_in_the_middle_of_a_shard(store: HttpStore, tmp_path: Path) -> None:
    whole = batches(str(store.folder), tmp_path / "c")
    assert len(whole) == 5 and not equal(whole[0], whole[1])
    for workers, start in ((0, 0), (2, 3)):
        store.seen.clear()
        found = batches(store.url, tmp_path / "c", workers, start)
        assert len(found) == 5 - start and all(map(equal, found, whole[start:]))
        asked = [path for path, _ in store.seen if path.endswith(".tar")]
        assert len(asked) == 4 * (5 - start), "more was read than the samples that were left"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_skipped_shard_leaves_the_order_of_the_others(store: HttpStore, tmp_path: Path, workers: int) -> None:
    whole = batches(str(store.folder), tmp_path / "c")
    bad = random.randrange(3)  # the last holds the validation's clips
    print("bad shard", bad)
    store.faults[name(bad)] = ("500", -1)
    handler = logging.FileHandler(tmp_path / "log")  # which the workers write to as well
    logging.getLogger("zoo.audio.corpora.sharded").addHandler(handler)
    try:
        found, again = (batches(store.url, tmp_path / "c", workers) for _ in range(2))
    finally:
        logging.getLogger("zoo.audio.corpora.sharded").removeHandler(handler)
    assert all(map(equal, found, again)), "other samples came in place of the skipped ones"
    kept = 0
    for mine, theirs in zip(found, whole, strict=True):
        for row, samples in enumerate(theirs["lengths"].tolist()):  # which tell the clips apart
            if (samples - 1500) // 40 // IN_SHARD != bad:
                kept += 1
                assert mine["lengths"][row] == samples
                assert all(
                    torch.equal(mine[key][row, :samples], theirs[key][row, :samples]) for key in ("clean", "input")
                )
    assert kept >= 20 - IN_SHARD
    assert (tmp_path / "log").read_text().count("shard skipped") == 2  # a line in each of the two runs


DRILL = [
    *("--config", REPOSITORY / "configs" / "miipher" / "smoke_adapter.yaml", *TOY_ARGS, "--data.degrader", "null"),
    *("--trainer.max_steps=14", "--checkpoints.every_n_batches=3", "--trainer.log_every_n_steps=1"),
    *("--trainer.val_check_interval=7", "--data.val_items=2", "--data.batch_size=2", "--data.max_seconds=0.1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_training_ends_with_the_same_weights(store: HttpStore, tmp_path: Path, workers: int) -> None:
    """From files without a kill, and from a store that fails now and then with a kill -9: the same bits."""
    args = ["fit", *DRILL, f"--data.cache={tmp_path / 'cache'}"]
    local = [f"--data.shards={store.folder}", f"--trainer.default_root_dir={tmp_path / 'whole'}"]
    good(forked(*args, *local, cwd=tmp_path))
    store.faults = {name(i): (random.choice(["500", "drop"]), 2) for i in range(4)}
    step = random.randrange(4, 14)
    print("killed at", step, "faults", store.faults)
    remote = [*args, f"--data.shards={store.url}/", f"--data.num_workers={workers}"]
    remote.append(f"--trainer.default_root_dir={tmp_path / 'killed'}")
    kill = ("--trainer.callbacks+=toy_wing.faults.KillAt", f"--trainer.callbacks.step={step}")
    killed = forked(*remote, *kill, cwd=tmp_path, ZOO_STORE_QUERY="sig=confidential")
    assert killed.returncode == -9, killed.stderr[-3000:]
    resumed = good(forked(*remote, "--ckpt_path=last", cwd=tmp_path, ZOO_STORE_QUERY="sig=confidential"))
    assert "goes on from" in resumed.stderr and "confidential" not in resumed.stderr + resumed.stdout
    assert fingerprint(newest(tmp_path / "killed")) == fingerprint(newest(tmp_path / "whole"))
    assert losses(tmp_path / "killed", "train/loss") == losses(tmp_path / "whole", "train/loss")
    assert all(b"confidential" not in path.read_bytes() for path in (tmp_path / "killed").rglob("*") if path.is_file())
