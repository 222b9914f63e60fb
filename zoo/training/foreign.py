"""Read other projects' checkpoints as data; nothing that a file contains is ever executed."""

from __future__ import annotations

import io
import mmap
import reprlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zoo.training.unpickle import Machine, Stub, UnsafeFileError

__all__ = ["Stub", "UnsafeFileError", "load_foreign", "plain"]

# First pickle of torch's format before 1.6 and the version that follows it (torch.serialization).
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001

STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}


def load_foreign(path: Path | str, map_location: str | torch.device = "cpu") -> Any:
    """Read a checkpoint of another project as plain data.

    Args:
        path: torch zip file, torch file of the format before 1.6, plain pickle or safetensors file.
        map_location: device of the returned tensors.

    Returns:
        The file's object; tensors and numpy arrays are real, every foreign class is a `Stub`.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFileError: the file asks to run code, or is of a kind that cannot be read as data.
        ValueError: the file is damaged or of no known kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        return _load_safetensors(path, map_location)
    # torch.load(weights_only=True) is not asked first: `bytearray(n)` in a file makes it allocate any n.
    try:
        content = _load_file(path)
        device = torch.device(map_location)
        return content if device.type == "cpu" else _moved(content, device, set())
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path}: {error}; nothing of the file was executed") from error
    except MemoryError:
        raise
    except Exception as error:
        # Random bytes make a pickle machine fail in every way there is; all mean the same to the user.
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: neither a torch nor a pickle file, or an incomplete one ({reason})") from error


def plain(value: Any) -> Any:
    """Turn OmegaConf nodes, namespaces and dict- or list-like stubs inside a loaded object into plain values.

    Args:
        value: what `load_foreign` returned, or a part of it.

    Returns:
        The same data as dicts, lists and values; a `Stub` of another kind stays as it is.
    """
    try:
        return _plain(value, {})
    except RecursionError as error:
        raise UnsafeFileError("its records contain one another in a circle") from error


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Do the work of `plain`; `done` keeps a container that occurs twice from being spelled out twice."""
    if id(value) in done:
        return done[id(value)]
    result: Any = value
    if isinstance(value, Stub):
        content = _content(value)
        result = value if content is value else _plain(content, done)
    elif isinstance(value, Mapping):
        result = done[id(value)] = {}
        result.update((key, _plain(entry, done)) for key, entry in value.items())
    elif isinstance(value, list):
        result = done[id(value)] = []
        result.extend(_plain(entry, done) for entry in value)
    elif type(value) is tuple:
        result = tuple(_plain(entry, done) for entry in value)
    done[id(value)] = result
    return result


def _content(stub: Stub) -> Any:
    """Return what a record of a container or node holds, or the record itself."""
    if isinstance(stub.state, Mapping):
        if stub.path == "argparse.Namespace":
            return stub.state
        for key in ("_content", "_val"):
            if stub.path.startswith("omegaconf.") and key in stub.state:
                return stub.state[key]
    if bool(stub.entries) == bool(stub.elements):
        return stub
    return stub.entries or stub.elements


def _load_safetensors(path: Path, map_location: str | torch.device) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device=str(map_location))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); is it complete?") from error


def _load_file(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    if zipped:
        with zipfile.ZipFile(path) as archive:
            return _load_zip(archive)
    # A mapped file hands out what is there; a buffered one allocates what a hostile length claims before reading.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        return _load_stream(stream)


def _load_bytes(data: bytes) -> Any:
    """Read a torch file embedded in a pickle, as tensors of plain pickles are."""
    if data.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _load_zip(archive)
    return _load_stream(io.BytesIO(data))


def _load_zip(archive: zipfile.ZipFile) -> Any:
    """Read torch's format since 1.6: a zip of one pickle and a file per storage."""
    names = {entry.filename: entry for entry in archive.infolist()}
    if any(name.endswith("/constants.pkl") for name in names):
        raise UnsafeFileError("a TorchScript archive holds code; save its state_dict() with torch.save instead")
    roots = [name.removesuffix("data.pkl") for name in names if name.split("/")[1:] == ["data.pkl"]]
    if len(roots) != 1:
        raise UnsafeFileError(f"a zip file with {len(roots)} data.pkl is no torch file")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in names.values()):
        raise UnsafeFileError("torch stores without compression, this zip file does not (a zip bomb?)")
    if any(entry.header_offset + entry.file_size > archive.start_dir for entry in names.values()):
        raise ValueError("a part of its zip archive is longer than the file")
    root = roots[0]
    order = archive.read(f"{root}byteorder").decode("latin1") if f"{root}byteorder" in names else "little"
    if order != sys.byteorder:
        raise ValueError(f"its byte order is {order!r}, this machine's {sys.byteorder!r}")
    storages: dict[str, torch.Tensor] = {}

    def storage(identifier: Any) -> torch.Tensor:
        dtype, key, count = _storage_identifier(identifier)
        if key not in storages:
            storages[key] = _zip_storage(archive, f"{root}data/{key}", dtype, count)
        return storages[key]

    return Machine(io.BytesIO(archive.read(f"{root}data.pkl")), storage, _load_bytes).load()


def _load_stream(stream: io.BytesIO | mmap.mmap) -> Any:
    """Read a plain pickle, or torch's format before 1.6: header pickles, the object, then the bytes of its storages."""
    stream.seek(0, io.SEEK_END)
    size = stream.tell()
    stream.seek(0)
    if stream.read(262)[257:262] == b"ustar":
        raise UnsafeFileError("torch files from before 2017 (tar) are not read; save it anew with the original code")
    stream.seek(0)
    first = Machine(stream, _refuse_storage, _load_bytes).load()
    if type(first) is not int or first != LEGACY_MAGIC:
        return first
    version = Machine(stream, _refuse_storage, _load_bytes).load()
    if version != LEGACY_VERSION:
        raise ValueError(f"torch file version {version!r}, expected {LEGACY_VERSION}")
    system = Machine(stream, _refuse_storage, _load_bytes).load()
    if bool(system.get("little_endian", True)) != (sys.byteorder == "little"):
        raise ValueError(f"its byte order is not this machine's ({sys.byteorder})")
    storages: dict[str, torch.Tensor] = {}

    def storage(identifier: Any) -> torch.Tensor:
        dtype, key, count = _storage_identifier(identifier)
        if key not in storages:
            claimed = sum(entry.nbytes for entry in storages.values()) + count * dtype.itemsize
            if claimed > size:
                raise ValueError(f"its storages claim {claimed} bytes, the file has {size}")
            storages[key] = torch.zeros(count, dtype=dtype)
        view = identifier[5] if len(identifier) > 5 else None
        return storages[key] if view is None else storages[key][view[1] : view[1] + view[2]]

    result = Machine(stream, storage, _load_bytes).load()
    for key in Machine(stream, _refuse_storage, _load_bytes).load():
        flat = storages[key]
        count = int.from_bytes(stream.read(8), "little")
        if count != flat.numel():
            raise ValueError(f"storage {key!r} has {count} elements, its header says {flat.numel()}")
        raw = bytearray(stream.read(flat.nbytes))
        if len(raw) != flat.nbytes:
            raise ValueError(f"storage {key!r} ends early")
        if count:
            flat.copy_(torch.frombuffer(raw, dtype=flat.dtype))
    return result


def _refuse_storage(identifier: Any) -> torch.Tensor:
    raise UnsafeFileError(
        f"it refers to the external object {reprlib.repr(identifier)}, which a plain pickle cannot hold"
    )


def _storage_identifier(identifier: Any) -> tuple[torch.dtype, str, int]:
    """Check a persistent id `("storage", type, key, location, count, …)`."""
    if not isinstance(identifier, tuple) or len(identifier) < 5 or identifier[0] != "storage":
        raise UnsafeFileError(f"it refers to an unknown external object {reprlib.repr(identifier)}")
    kind, key, count = identifier[1], identifier[2], identifier[4]
    dtype = STORAGE_DTYPES.get(kind.path.rpartition(".")[2]) if isinstance(kind, Stub) else None
    if dtype is None or type(count) is not int or count < 0 or not isinstance(key, str):
        raise UnsafeFileError(f"it refers to an unknown storage {reprlib.repr(identifier)}")
    return dtype, key, count


def _zip_storage(archive: zipfile.ZipFile, name: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    if archive.getinfo(name).file_size != count * dtype.itemsize:
        raise ValueError(f"{name} has {archive.getinfo(name).file_size} bytes, expected {count} x {dtype.itemsize}")
    return torch.frombuffer(bytearray(archive.read(name)), dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _moved(value: Any, device: torch.device, seen: set[int]) -> Any:
    """Move the tensors of nested containers; tensors recorded in stubs stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        value.update({key: _moved(entry, device, seen) for key, entry in value.items()})
    elif isinstance(value, list):
        value[:] = [_moved(entry, device, seen) for entry in value]
    return value
