"""What W&B and TensorBoard have on disk."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEAD, PREFIX = 32768, 7, 7  # of LevelDB's log format, in which W&B writes, after 7 other bytes


def records(path: Path, kind: str) -> Iterator:
    """The records of a kind in an offline run of W&B, whose service may end writing after the fit."""
    results, give_up = list(_records(path)), time.monotonic() + 30
    while "exit" not in (name for name, _ in results) and time.monotonic() < give_up:
        time.sleep(0.2)
        results = list(_records(path))
    return (record for name, record in results if name == kind)


def _records(path: Path) -> Iterator:
    content, parts, at = path.read_bytes(), b"", PREFIX
    while at + HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, size, position = struct.unpack("<IHB", content[at : at + HEAD])
        parts += content[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if at > len(content):
            return
        if position in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            kind = record.WhichOneof("record_type")
            if kind is not None:
                yield kind, getattr(record, kind)


def values(updates) -> dict:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}


def offline_runs(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))


def hparams(run: Path) -> tuple[EventAccumulator, dict[str, HParamsPluginData]]:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    content = events.PluginTagToContent("hparams").items()
    return events, {tag.removeprefix("_hparams_/"): HParamsPluginData.FromString(each) for tag, each in content}
