"""What a bulk run computes: the same list on every rank and in every call, about ten bytes a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, overload

from zoo.audio.io.archives import TAR_SUFFIXES, Member, read_tar
from zoo.audio.io.files import scan, walk
from zoo.audio.io.shards import AUDIO_SUFFIXES, CLEAN, DEGRADED
from zoo.common.ranges import at_least
from zoo.runs.jobs.order import Digests, digest, in_order

WALK_SUFFIXES = tuple(sorted({Path(f"x{suffix}").suffix for suffix in TAR_SUFFIXES}))
"""What `zoo.audio.io.files.walk` must be asked for to find shards; other `.gz` files are found too."""
_WANTED = [f"{stem}{suffix}" for stem in (DEGRADED, CLEAN) for suffix in AUDIO_SUFFIXES]
_BLOCK_JOBS = 256  # compressed together; an access unpacks one block


class Job(NamedTuple):
    """One file to compute, or one member of a shard."""

    source: Path
    target: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """The source as the manifest names it."""
        return str(self.source.absolute() / (self.member or ""))


class Entry(NamedTuple):
    """A job in plain text: its number in the whole plan, its name in the manifest, its target below the output."""

    number: int
    name: str
    target: str


class _Names:
    """(file below the input, member or "") of every job, in order, compressed."""

    def __init__(self, names: Iterable[tuple[str, str]]) -> None:
        self._blocks: list[bytes] = []
        self.count = 0
        hashed = blake2b(digest_size=16)
        fields: list[str] = []
        for name in names:
            fields += name
            self.count += 1
            if len(fields) == 2 * _BLOCK_JOBS:
                self._pack(fields, hashed)
                fields = []
        if fields:
            self._pack(fields, hashed)
        self.digest = hashed.hexdigest()
        self._open, self._fields = -1, list[str]()

    def _pack(self, fields: list[str], hashed: blake2b) -> None:
        data = os.fsencode("\0".join(fields))
        hashed.update(data + b"\0")
        self._blocks.append(zlib.compress(data, 1))

    def __getitem__(self, number: int) -> tuple[str, str]:
        block, place = divmod(number, _BLOCK_JOBS)
        if block != self._open:
            self._open, self._fields = block, os.fsdecode(zlib.decompress(self._blocks[block])).split("\0")
        return self._fields[2 * place], self._fields[2 * place + 1]


class Plan(Sequence[Job]):
    """Jobs in the order of their sources, made when they are asked for; a slice is a plan.

    Args:
        names: (file below `root`, member of it or "") in order.
        root: the folder of the inputs.
        output: the folder for results.
        suffix: of the files to write.
        fanout: most results in a folder, >= 1, see `plan`; None for mirrored folders.
    """

    def __init__(
        self, names: Iterable[tuple[str, str]], root: Path, output: Path, suffix: str, fanout: int | None = None
    ) -> None:
        self.root, self.output, self.suffix, self.fanout = root, output, suffix, fanout
        self._names = _Names(names)
        self._numbers: Sequence[int] = range(self._names.count)
        self._shared, self._wide = Digests(), dict[bytes, int]()
        targets = Digests()
        for entry in self.entries():
            targets.add(os.fsencode(entry.target))
        self._shared = targets.repeated()
        del targets
        if fanout is not None:
            folders = Digests()
            for entry in self.entries():
                folders.add(os.fsencode(os.path.dirname(entry.target)))
            self._wide = {folder: _digits(count, fanout) for folder, count in folders.many(fanout).items()}

    @classmethod
    def of(cls, names: Iterable[str], root: Path, output: Path, suffix: str, fanout: int | None = None) -> Plan:
        """Plan files given in any order; each shard among them stands for its recordings."""
        # the parts of a path are compared one by one, as pathlib does
        ordered = in_order(os.fsencode(name).replace(b"/", b"\0") for name in names)
        return cls(_with_members(ordered, root), root, output, suffix, fanout)

    @property
    def digest(self) -> str:
        """Hash of the whole list, whatever part this is: equal when the same files go to the same places."""
        return blake2b(f"{self._names.digest} {self.suffix} {self.fanout}".encode(), digest_size=16).hexdigest()

    @property
    def whole(self) -> int:
        """Jobs of the whole list, whatever part this is."""
        return self._names.count

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Plan: ...
    def __getitem__(self, index: int | slice) -> Job | Plan:
        if isinstance(index, slice):
            return self.only(self._numbers[index])
        name, member = self._names[self._numbers[index]]
        return Job(self.root / name, self.output / self._target(name, member), member or None)

    def only(self, numbers: Sequence[int]) -> Plan:
        """Some jobs, by their numbers in the whole plan."""
        part = object.__new__(Plan)
        part.__dict__.update(self.__dict__)
        part._numbers = numbers
        return part

    def entries(self) -> Iterator[Entry]:
        """The jobs in plain text, which costs a fraction of a `Job`."""
        root = str(self.root.absolute())
        for number in self._numbers:
            name, member = self._names[number]
            yield Entry(number, os.path.join(root, name, member) if member else f"{root}{os.sep}{name}",
                        self._target(name, member))  # fmt: skip

    def _target(self, name: str, member: str) -> str:
        if member:
            folder, slash, last = member.rpartition("/")
            target = f"{name[: -len(_tar_suffix(name))]}/{folder}{slash}{last.partition('.')[0]}{self.suffix}"
        else:
            target = os.path.splitext(name)[0] + self.suffix
            if len(self._shared) and os.fsencode(target) in self._shared:
                target = name + self.suffix
        if self._wide:
            folder, slash, last = target.rpartition("/")
            digits = self._wide.get(digest(os.fsencode(folder)))
            if digits:
                target = f"{folder}{slash}_{digest(os.fsencode(last)).hex()[:digits]}/{last}"
        return target

    def check(self) -> Plan:
        """Refuse results that would overwrite an input or one another.

        Raises:
            ValueError: naming the first.
        """
        inside, whole = os.fsencode(self.output.resolve()), os.fsencode(self.root.resolve())
        taken = Digests()
        if whole.startswith(inside) or inside.startswith(whole):  # else no result lies among the inputs
            before = None
            for number in self._numbers:
                name, _ = self._names[number]
                if name != before:
                    taken.add(os.path.join(whole, os.fsencode(name)))
                before = name
        for entry in self.entries():
            taken.add(os.path.join(inside, os.fsencode(entry.target)))
        repeated = taken.repeated()
        for entry in self.entries() if len(repeated) else ():
            if os.path.join(inside, os.fsencode(entry.target)) in repeated:
                raise ValueError(
                    f"the result of {entry.name} would overwrite an input, {self.output / entry.target}, or another "
                    "result; rename the input or name another --output"
                )
        return self


def _digits(count: int, fanout: int) -> int:
    """Hexadecimal digits of the subfolders' names: enough that they are half full on average."""
    digits = 1
    while count > 16**digits * fanout / 2:
        digits += 1
    return digits


def plan(input: Path, output: Path, suffixes: Sequence[str], output_suffix: str, fanout: int | None = None) -> Plan:
    """List what is to be computed; the same on every rank, whatever is finished already.

    Args:
        input: a file, or a folder whose tree is mirrored. Where audio is read, shards (`.tar`, `.tar.gz`) are folders
            of recordings: the degraded one of each sample, else the speech, goes to `<shard>/<key>`.
        output: the folder for results; when it lies inside `input`, what it holds is no input.
        suffixes: of the files to read, lower case with the dot.
        output_suffix: of the files to write. Where `a.wav` and `a.flac` would meet in one target, both keep their
            suffix: `a.wav.wav` and `a.flac.wav`.
        fanout: where a folder would hold more results than this, they go to subfolders `_0` to `_f` of it (or `_00` to
            `_ff` ...) by a hash of their name, so many that these are half full. None mirrors the tree as it is.

    Returns:
        Jobs in the order of their sources.

    Raises:
        FileNotFoundError: when there is no such input.
        ValueError: when no file has one of the suffixes, or results would overwrite inputs or one another.
    """
    input, output = Path(input), Path(output)
    if fanout is not None:
        at_least(1, fanout=fanout)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; name a folder")
    root = input if input.is_dir() else input.parent
    inside, whole = output.resolve(), root.resolve()
    if input.is_dir() and inside == whole:
        raise ValueError(f"--output {output} is the input folder itself; name another folder")
    shards = WALK_SUFFIXES if ".wav" in suffixes else ()
    wanted = (*suffixes, *shards)
    if input.is_dir():
        above = len(os.path.join(root, ""))
        found = (path[above:] for path in scan(input, wanted))
    else:
        found = (path.name for path in walk(input, wanted))
    own = f"{inside.relative_to(whole).as_posix()}/" if input.is_dir() and inside.is_relative_to(whole) else None
    names = (
        name for name in found
        if (_suffix(name) in suffixes or is_shard(name)) and not (own and name.startswith(own))
    )  # fmt: skip
    made = Plan.of(names, root, output, output_suffix, fanout)
    if not made:
        raise ValueError(f"no file below {input} ends in {', '.join(suffixes)}")
    return made.check()


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _with_members(ordered: Iterable[bytes], root: Path) -> Iterator[tuple[str, str]]:
    for key in ordered:
        name = os.fsdecode(key.replace(b"\0", b"/"))
        if is_shard(name):
            yield from ((name, member) for member in recordings(root / name).values())
        else:
            yield name, ""


def is_shard(path: Path | str) -> bool:
    """Whether a path is named like a shard."""
    return str(path).endswith(TAR_SUFFIXES)


def _tar_suffix(name: str) -> str:
    return next(suffix for suffix in TAR_SUFFIXES if name.endswith(suffix))


def recordings(shard: Path) -> dict[str, str]:
    """List what is to be computed of a shard, without reading the samples.

    Args:
        shard: tar file, compressed by gzip or not.

    Returns:
        Member's name by key, in order: of each sample the degraded recording, or the speech where there is none.

    Raises:
        ValueError: when the shard is cut or damaged, or no sample holds a recording.
    """
    found: dict[str, str] = {}
    for member in read_tar(shard):
        folder, slash, last = member.name.rpartition("/")
        stem, _, extension = last.partition(".")
        key = folder + slash + stem
        if extension in _WANTED and (key not in found or _rank(member.name) < _rank(found[key])):
            found[key] = member.name
    if not found:
        raise ValueError(f"{shard}: no sample holds a recording, expected members like <key>.{_WANTED[0]}")
    return found


def _rank(name: str) -> int:
    return _WANTED.index(name.rpartition("/")[2].partition(".")[2])


class ShardFiles:
    """Gives members as files; goes through each shard once when they are asked for in their order."""

    def __init__(self) -> None:
        self._shard: Path | None = None
        self._members: Iterator[Member] = iter(())

    @contextlib.contextmanager
    def file(self, shard: Path, name: str) -> Iterator[Path]:
        """Unpack a member for a while.

        Yields:
            A temporary file.

        Raises:
            ValueError: when the shard has no such member, or is damaged there; also, naming the member in place of the
                temporary file, when the caller raises it.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name.rpartition("/")[2]
            path.write_bytes(self._read(shard, name))
            try:
                yield path
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), f"{shard}/{name}")) from error

    def _read(self, shard: Path, name: str) -> bytes:
        for _ in range(2):
            if shard != self._shard:
                self._shard, self._members = shard, read_tar(shard)
            for member in self._members:
                if member.name == name:
                    return member.read()
            self._shard = None  # the member lies further to the front
        raise ValueError(f"{shard}: holds no {name} any more; run the same command again")
