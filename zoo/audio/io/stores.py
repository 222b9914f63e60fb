"""Where shards lie: paths, and http(s):// and s3:// addresses read by ranges, with timeouts and bounded retries.

An address holds no secret: user name, password and query are refused, so that addresses may stand in recipes, logs and
checkpoints. What signs requests comes from the environment: `ZOO_STORE_QUERY` is added to every HTTP request; S3 takes
the usual `AWS_…` variables (`AWS_ENDPOINT_URL` for other stores) and `FSSPEC_S3_ANON=true` for public buckets.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import math
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from zoo.common.ranges import at_least, positive

T = TypeVar("T")
SCHEMES = ("http", "https", "s3")
QUERY_VARIABLE = "ZOO_STORE_QUERY"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_BLOCK_BYTES = 2**23  # of a range when a whole file is read
_MOST_BYTES = 2**40  # of any file
_AT_ONCE = 16  # requests of a process in flight
_LONGEST_PAUSE = 8.0  # seconds between two tries


class StoreError(OSError):
    """What a store would not give, in one line that names the file; `is_final` where another try is no use."""

    def __init__(self, place: object, cause: str, is_final: bool = False, is_missing: bool = False) -> None:
        super().__init__(f"{place}: {cause}")
        self.cause, self.is_final, self.is_missing = cause, is_final, is_missing


@dataclass(frozen=True, order=True)
class Url:
    """The address of a file or folder in a store; made by `place`, which checks it."""

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.address.rstrip('/')}/{name if self.scheme == 's3' else quote(name)}")

    @property
    def scheme(self) -> str:
        """`http`, `https` or `s3`."""
        return self.address.partition(":")[0].lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        last = self.address.rstrip("/").rpartition("/")[2]
        return last if self.scheme == "s3" else unquote(last)

    @property
    def parent(self) -> Url:
        """The folder around it."""
        return Url(self.address.rstrip("/").rpartition("/")[0])


Place = Path | Url


@dataclass(frozen=True)
class Patience:
    """How long a store is waited for.

    Args:
        timeout_seconds: for one read, of a sample or of a block of 8 MiB.
        retries: further tries after a failed read, with growing pauses between them.
        pause_seconds: the first of these, then twice as long each time up to 8 s.
    """

    timeout_seconds: float = 30.0
    retries: int = 3
    pause_seconds: float = 0.5

    def __post_init__(self) -> None:
        positive(timeout_seconds=self.timeout_seconds)
        at_least(0, retries=self.retries, pause_seconds=self.pause_seconds)


class Facts(NamedTuple):
    """What a store says of a file: its size, and a tag that changes with its content, perhaps empty."""

    size: int
    tag: str


class NoRangesError(StoreError):
    """The server answers a range with the whole file; `facts` is what it says of it."""

    def __init__(self, place: object, facts: Facts) -> None:
        super().__init__(place, "the server has no ranges", is_final=True)
        self.facts = facts


def is_url(text: str | os.PathLike[str]) -> bool:
    """Whether this is an address and no path."""
    return _SCHEME.match(os.fspath(text)) is not None


def place(text: str | os.PathLike[str]) -> Place:
    """A path, or the checked address of a store.

    Raises:
        ValueError: another scheme, no host or bucket, or an address with user name, password or query.
    """
    text = os.fspath(text)
    match = _SCHEME.match(text)
    if match is None:
        return Path(text)
    parts = urlsplit(text)
    shown = f"{match[1]}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if match[1].lower() not in SCHEMES:
        raise ValueError(
            f"{shown}: expected a path or an address that begins with {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    if not parts.netloc.rpartition("@")[2]:
        raise ValueError(f"{shown}: the address names no {'bucket' if match[1].lower() == 's3' else 'host'}")
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise ValueError(
            f"{shown}: give the address without user name, password, query (?) and fragment (#), which would be "
            f"written into recipes and logs; what signs requests goes into the variable {QUERY_VARIABLE}"
        )
    return Url(text)


def read_ranges(
    wanted: Sequence[tuple[Url, int, int]], patience: Patience, sizes: Sequence[int]
) -> list[bytes | StoreError]:
    """Read bytes `start` to `stop` (excluded) of files, all at once.

    Args:
        sizes: of the files, compared with what the server says where it says it.

    Returns:
        The bytes, or why they could not be had.
    """

    async def one(url: Url, start: int, stop: int, size: int) -> bytes:
        data, found = await _range(url, start, stop)
        if -1 not in (size, found.size) and found.size != size:
            raise StoreError(url, f"cut or altered, it has {found.size} bytes where {size} are expected", True)
        return data

    return _all([(each[0], partial(one, *each, size)) for each, size in zip(wanted, sizes, strict=True)], patience)


def facts(urls: Sequence[Url], patience: Patience) -> list[Facts | StoreError]:
    """What the stores say of files, or why they do not."""

    async def one(url: Url) -> Facts:
        try:
            return (await _range(url, 0, 1, may_be_short=True))[1]
        except NoRangesError as error:
            return error.facts

    return _all([(url, partial(one, url)) for url in urls], patience)


def read_small(urls: Sequence[Url], most_bytes: int, patience: Patience) -> list[bytes | StoreError]:
    """Read whole files of at most `most_bytes`, all at once; or why they could not be had."""

    async def one(url: Url) -> bytes:
        buffer = io.BytesIO()
        await _fetch(url, buffer, patience, most_bytes)
        return buffer.getvalue()

    return _all([(url, partial(one, url)) for url in urls], replace(patience, retries=0, timeout_seconds=math.inf))


def fetch(url: Url, file: BinaryIO, patience: Patience) -> None:
    """Read a whole file, by ranges of 8 MiB, each of which may be tried again; without ranges, from its start.

    Args:
        file: where it goes; empty.

    Raises:
        StoreError: there is no such file, or the store keeps failing.
    """
    _run(partial(_fetch, url, file, patience, _MOST_BYTES), {url.scheme})


async def _fetch(url: Url, file: BinaryIO, patience: Patience, most_bytes: int) -> None:
    position, total = 0, -1
    while position != total:
        block = partial(_range, url, position, position + _BLOCK_BYTES, may_be_short=True)
        try:
            data, found = await _patiently(url, block, patience)
        except NoRangesError:
            found = Facts(-1, "")
        if found.size < 0:  # only the end of the stream tells how long it is
            whole = partial(_stream, url, file, patience, most_bytes)
            return await _patiently(url, whole, replace(patience, timeout_seconds=math.inf))
        if found.size > most_bytes or total not in (-1, found.size):
            expected = f"at most {most_bytes}" if total < 0 else f"{total} as before"
            raise StoreError(url, f"has {found.size} bytes, expected {expected}", True)
        file.write(data)
        position, total = position + len(data), found.size


async def _stream(url: Url, file: BinaryIO, patience: Patience, most_bytes: int) -> None:
    file.seek(0)
    file.truncate()
    async with await _request(url, {}) as reply:
        while data := await asyncio.wait_for(_up_to(reply, _BLOCK_BYTES), patience.timeout_seconds):
            if file.tell() + len(data) > most_bytes:
                raise StoreError(url, f"has more than the allowed {most_bytes} bytes", True)
            file.write(data)


@contextmanager
def local(where: Place, patience: Patience | None = None, folder: Path | None = None) -> Iterator[Path]:
    """The path of a file, or of a temporary copy, in `folder` if given, of what an address names."""
    if isinstance(where, Path):
        yield where
        return
    with tempfile.TemporaryDirectory(prefix="zoo-", dir=folder, ignore_cleanup_errors=True) as made:
        with (path := Path(made) / "copy").open("wb") as file:
            fetch(where, file, patience or Patience())
        yield path  # closed: Windows opens no file twice


def _all(reads: Sequence[tuple[Url, Callable[[], Awaitable[T]]]], patience: Patience) -> list[T | StoreError]:
    async def one(limit: asyncio.Semaphore, url: Url, read: Callable[[], Awaitable[T]]) -> T | StoreError:
        async with limit:
            try:
                return await _patiently(url, read, patience)
            except StoreError as error:
                return error

    async def together() -> list[T | StoreError]:
        limit = asyncio.Semaphore(_AT_ONCE)
        return await asyncio.gather(*(one(limit, url, read) for url, read in reads))

    return _run(together, {url.scheme for url, _ in reads}) if reads else []


async def _patiently(url: Url, read: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Try until it works, a final error comes, or the tries are used up."""
    for attempt in range(patience.retries + 1):
        if attempt:
            await asyncio.sleep(min(patience.pause_seconds * 2 ** (attempt - 1), _LONGEST_PAUSE))
        try:
            seconds = patience.timeout_seconds
            return await asyncio.wait_for(read(), None if math.isinf(seconds) else seconds)
        except TimeoutError:
            cause = f"no answer within {patience.timeout_seconds:g} s"
        except StoreError as error:
            if error.is_final:
                raise
            cause = error.cause
        except _faults(url.scheme) as error:
            # never an HTTP client's own words: they repeat the address as it was sent, with what signs it
            said = str(error).partition("\n")[0] if url.scheme == "s3" else getattr(error, "strerror", None)
            cause = said or f"the connection broke ({type(error).__name__})"
            if isinstance(error, FileNotFoundError | PermissionError):
                raise StoreError(
                    url, f"no such file or no access ({cause})", True, isinstance(error, FileNotFoundError)
                ) from None
    tries = f" ({patience.retries + 1} tries)" if patience.retries else ""
    raise StoreError(url, cause + tries)


async def _range(url: Url, start: int, stop: int, may_be_short: bool = False) -> tuple[bytes, Facts]:
    """Bytes of a file and what the store says of it; with `may_be_short` those before the file's end."""
    if url.scheme == "s3":
        found = Facts(-1, "")
        store, path = _filesystem("s3"), url.address.partition("://")[2]
        if may_be_short:
            about = await store._info(path, refresh=True)
            found = Facts(about["size"], str(about.get("ETag", "")))
            stop = min(stop, found.size)
        data = await store._cat_file(path, start=start, end=stop) if stop > start else b""
    else:
        async with await _request(url, {"Range": f"bytes={start}-{stop - 1}"}) as reply:
            tag = reply.headers.get("ETag") or reply.headers.get("Last-Modified", "")
            if reply.status == 200:
                raise NoRangesError(url, Facts(reply.content_length or -1, tag))
            match = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", ""))
            if reply.status == 416 and match is not None and match[3] == "0":
                return b"", Facts(0, tag)
            if reply.status != 206 or match is None or int(match[1] or -1) != start:
                raise StoreError(url, f"no answer to a range that could be used (HTTP {reply.status})", True)
            found = Facts(-1 if match[3] == "*" else int(match[3]), tag)
            stop = min(stop, int(match[2]) + 1) if may_be_short else stop
            data = await reply.content.readexactly(stop - start)
    if len(data) != stop - start:
        raise StoreError(url, f"{len(data)} bytes arrived of {stop - start}")
    return data, found


async def _up_to(reply: Any, size: int) -> bytes:
    try:
        return await reply.content.readexactly(size)
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _request(url: Url, headers: dict[str, str]) -> Any:
    from yarl import URL

    query = os.environ.get(QUERY_VARIABLE, "").removeprefix("?")
    address = URL(f"{url.address}?{query}" if query else url.address, encoded=True)
    session = await _filesystem("http").set_session()
    reply = await session.get(address, headers={"Accept-Encoding": "identity", **headers}, allow_redirects=False)
    status = reply.status
    if status in (200, 206, 416):
        return reply
    target = reply.headers.get("Location", "").partition("?")[0].rpartition("@")[2]
    reply.close()
    if 300 <= status < 400:
        raise StoreError(url, f"redirects to {target}, which is not followed; give that address", True)
    cause = {404: "no such file", 401: "no access", 403: "no access"}.get(status, "the server failed")
    raise StoreError(
        url, f"{cause} (HTTP {status})", 400 <= status < 500 and status not in (408, 425, 429), status == 404
    )


def _filesystem(scheme: str) -> Any:
    import fsspec

    if scheme == "s3":
        return fsspec.filesystem("s3", use_listings_cache=False)
    return fsspec.filesystem("http", client_kwargs={"trust_env": True})


def _faults(scheme: str) -> tuple[type[Exception], ...]:
    import aiohttp

    common = (OSError, EOFError, aiohttp.ClientError)
    if scheme != "s3":
        return common
    from botocore.exceptions import BotoCoreError, ClientError

    return (*common, BotoCoreError, ClientError)


def _run(work: Callable[[], Coroutine[Any, Any, T]], schemes: set[str]) -> T:
    """Run a coroutine on fsspec's own loop, of which every process has one."""
    for name in ("aiohttp", "fsspec", *(["s3fs"] if "s3" in schemes else [])):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"addresses of shards need {name}: pip install 'zoo[cloud]'") from error
    from fsspec.asyn import get_loop, sync

    return sync(get_loop(), work)
