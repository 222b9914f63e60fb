"""Small files that ask for much, and what reading one costs."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from tests.faults.attempts import Attempt, attempt

MEBIBYTE = 2**20


class Cost(NamedTuple):
    """One call of `zoo`, and the most memory that it took beyond what the process had, in bytes."""

    call: Attempt
    memory: int


def costs(calls: Sequence[Sequence[object]]) -> list[Cost]:
    """Run commands in a process that may not grow by more than 3 GiB, or compute for more than a minute."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + 3 * 2**30,) * 2)
    found = []
    for call in calls:
        spent = sum(os.times()[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + 60, resource.RLIM_INFINITY))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS")
        result = attempt([str(word) for word in call])
        found.append(Cost(result._replace(seconds=sum(os.times()[:2]) - spent), status("VmHWM") - before))
    return found


def status(name: str) -> int:
    """A figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def kept(value: bytes, number: int) -> bytes:
    """A value that the memo keeps under a number below 256, and the stack does not."""
    return value + b"q" + bytes([number]) + b"0"


def again(number: int) -> bytes:
    return b"h" + bytes([number])


def call(name: str, *args: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n".encode() + b"(" + b"".join(args) + b"tR"


def calls(name: str, big: bytes, times: int) -> bytes:
    """One function called many times with one large value."""
    module, _, function = name.rpartition(".")
    function_kept = kept(f"c{module}\n{function}\n".encode(), 0)
    return function_kept + kept(big, 1) + b"(" + (again(0) + again(1) + b"\x85R") * times + b"l."


def laughs(width: int, depth: int) -> bytes:
    """Lists that hold one list several times, again and again."""
    return b"]" + b"".join(b"p%d\n0](%se" % (i, b"g%d\n" % i * width) for i in range(depth))


LONG = text("x" * 200_000)
MANY = b"(" + b"N" * 200_000 + b"l"
NUMBERS = b"(" + b"".join(b"M" + struct.pack("<H", i % 2**16) for i in range(60_000)) + b"l"
EMBEDDED = pickle.dumps(torch.zeros(50_000))


def embedded() -> bytes:
    buffer = io.BytesIO()
    torch.save(torch.zeros(50_000), buffer)
    return b"B" + struct.pack("<I", len(buffer.getvalue())) + buffer.getvalue()


def nested_tuples(depth: int) -> bytes:
    return b"N" + b"\x85" * depth


PICKLES: dict[str, Callable[[], bytes]] = {
    "names": lambda: kept(LONG, 0) + b"(" + (again(0) + again(0) + b"\x93") * 20_000 + b"l.",
    "encode": lambda: calls("_codecs.encode", LONG, 40_000),
    "bytes": lambda: calls("builtins.bytes", LONG, 40_000),
    "bytearray": lambda: calls("builtins.bytearray", LONG, 40_000),
    "list": lambda: calls("builtins.list", MANY, 40_000),
    "tuple": lambda: calls("builtins.tuple", MANY, 40_000),
    "deque": lambda: calls("collections.deque", MANY, 40_000),
    "set": lambda: calls("builtins.set", NUMBERS, 40_000),
    "frozenset": lambda: calls("builtins.frozenset", NUMBERS, 40_000),
    "Counter": lambda: calls("collections.Counter", NUMBERS, 40_000),
    "list of text": lambda: calls("builtins.list", LONG, 40_000),
    "path": lambda: calls("pathlib.PurePath", text("ab/" * 60_000), 40_000),
    "tensor in bytes": lambda: calls("torch.storage._load_from_bytes", embedded(), 40_000),
    "numpy scalars": lambda: (
        kept(call("numpy.dtype", text("S200000"), b"I0\n", b"I1\n"), 0)
        + kept(LONG, 1)
        + kept(b"cnumpy.core.multiarray\nscalar\n", 2)
        + b"("
        + (again(2) + again(0) + again(1) + b"\x86R") * 40_000
        + b"l."
    ),
    "empty sets": lambda: b"(" + b"\x8f" * 4_000_000 + b"l.",
    "keys that share": lambda: b"}" + b"N" + b"q\x000h\x00h\x00\x86" * 60 + b"Ns.",
    "nested key": lambda: b"}" + nested_tuples(400_000) + b"Ns.",
    "nested": lambda: nested_tuples(400_000) + b".",
    "laughs": lambda: laughs(10, 40) + b".",
    "table of one list": lambda: (
        kept(b"(" + b"".join(b"cm\nC\n" for _ in range(20_000)) + b"l", 0)
        + b"}("
        + b"".join(text(f"k{i}") + again(0) for i in range(20_000))
        + b"u."
    ),
    "long numbers as keys": lambda: (
        kept(b"\x8b" + struct.pack("<I", 200_000) + b"\x01" * 200_000, 0) + b"}(" + (again(0) + b"N") * 100_000 + b"u."
    ),
    "many dimensions": lambda: (
        kept(b"(" + b"\x8a\x08" + b"\x7f" * 8 + b"\x8a\x08\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f" * 60_000 + b"t", 0)
        + kept(call("numpy.dtype", text("f4")), 1)
        + call("numpy.core.numeric._frombuffer", b"B" + struct.pack("<I", 4) + b"abcd", again(1), again(0), text("C"))
        + b"."
    ),
}


def spread(path: Path, values: int) -> None:
    """A tensor of one number, written out `values` times by its strides."""
    torch.save({"state_dict": {"a": torch.zeros(1).expand(values)}, "zoo": {}}, path)


def repeated(path: Path, times: int) -> None:
    """One tensor under many names."""
    tensor = torch.zeros(100_000)
    torch.save({"generator": {f"a{i}": tensor for i in range(times)}}, path)


def overlapping(path: Path, entries: int, size: int = MEBIBYTE) -> None:
    """A torch file whose storages are all the same bytes."""
    data = b"".join(
        b"cm\nT\n(X" + struct.pack("<I", 7) + b"storagectorch\nByteStorage\n"
        + text(str(i)) + text("cpu") + b"J" + struct.pack("<i", size) + b"tQ"
        for i in range(entries)
    )  # fmt: skip
    write_overlapping(path, b"(" + data + b"l.", entries, size)


def write_overlapping(path: Path, pickled: bytes, entries: int, size: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0000", bytes(size))
        first = archive.getinfo("archive/data/0000")
        for number in range(entries):
            entry = zipfile.ZipInfo(f"archive/data/{number:04d}")
            for name in ("header_offset", "file_size", "compress_size", "CRC", "external_attr"):
                setattr(entry, name, getattr(first, name))
            if number:
                archive.filelist.append(entry)


def tensors_of_one_storage(path: Path, entries: int, size: int = MEBIBYTE) -> None:
    """The same as `overlapping`, in the pickle that torch itself writes."""
    buffer, small = io.BytesIO(), 2**16  # written small: a number of as many bytes in the pickle
    torch.save({"state_dict": {f"w{i}": torch.zeros(small, dtype=torch.uint8) for i in range(entries)}}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        pickled = archive.read("archive/data.pkl")
    assert pickled.count(b"J" + struct.pack("<i", small)) >= entries
    pickled = pickled.replace(b"J" + struct.pack("<i", small), b"J" + struct.pack("<i", size))
    for number in reversed(range(entries)):  # keys of one width
        old, new = text(str(number)), text(f"{number:04d}")
        pickled = pickled.replace(old + b"q", new + b"q", 1)
    write_overlapping(path, pickled, entries, size)


def yaml_laughs(depth: int = 30) -> str:
    lines = ["a0: &a0 [x, x]"]
    return "\n".join([*lines, *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(depth))])
