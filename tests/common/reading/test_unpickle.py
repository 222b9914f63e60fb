import contextlib
import io
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.bombs import again, call, kept, laughs, text
from zoo.common.reading import budget as limits
from zoo.common.reading.budget import Budget, check_keys, check_shape
from zoo.common.reading.errors import UnsafeFileError
from zoo.common.reading.torch_files import _read_embedded, read_torch
from zoo.common.reading.unpickle import Machine
from zoo.common.reading.values import BUILDERS, Stub

FREE = 2**20  # bytes, in the place of BYTES_FREE
SLACK = 2**20  # of a call that is under way when it is refused, and of the interpreter

CONSTANTS = [
    b"N", b"I7\n", b"K\x05", b"\x88", b")", b"]", b"}", b"\x8f", b"G" + struct.pack(">d", 1.5), b"Vtext\n",
    text("ab/" * 500), text("é" * 300 + "😀"), b"B" + struct.pack("<I", 800) + b"7" * 800,
    b"\x8b" + struct.pack("<I", 500) + b"\x01" * 500, text("f4"), text("S16"), text("latin1"), b"cmodule\nName\n",
]  # fmt: skip
NAMES = [*BUILDERS, "torch.storage._load_from_bytes", "numpy.dtype", "module.Name", "copyreg._reconstructor"]


LONGEST = 20_000  # bytes that a program is repeated up to


def joined(parts: list[bytes]) -> bytes:
    return b"".join(parts)


def times(part: bytes, number: int) -> bytes:
    return part * max(1, min(number, LONGEST // (len(part) + 1)))


def containers(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    several = st.lists(values, max_size=4).map(joined)
    many = st.builds(times, values, st.integers(1, 400))
    some = several | many
    calls = st.builds(lambda name, args: call(name, *args), st.sampled_from(NAMES), st.lists(values, max_size=4))
    return st.one_of(
        st.builds(lambda part: b"(" + part + b"l", some),
        st.builds(lambda part: b"(" + part + b"t", some),
        st.builds(lambda part: b"](" + part + b"e", some),
        st.builds(lambda part: b"(" + part + b"d", some),
        st.builds(lambda part: b"}(" + part + b"u", some),
        st.builds(lambda part: b"\x8f(" + part + b"\x90", some),
        st.builds(lambda part: b"(" + part + b"\x91", some),
        st.builds(lambda value, depth: value + b"\x85" * depth, values, st.integers(1, 300)),
        st.builds(lambda first, second: first + second + b"b", values, values),
        st.builds(lambda first, number: kept(first, number) + again(number), values, st.integers(0, 9)),
        st.integers(0, 9).map(again),
        calls,
        st.builds(times, calls, st.integers(1, 200)).map(lambda part: b"(" + part + b"l"),
    )


PROGRAMS = st.recursive(st.sampled_from(CONSTANTS), containers, max_leaves=12)
OPCODES = st.lists(
    st.sampled_from([*CONSTANTS, *(bytes([code]) for code in pickle._Unpickler.dispatch), b"h\x01", b"q\x01", b"2"]),
    max_size=60,
).map(joined)


def run(stream: bytes) -> object:
    allowed = Budget(len(stream))
    allowed.allowed = limits.BYTES_PER_BYTE * len(stream) + FREE
    found = Machine(io.BytesIO(stream), allowed, lambda _: torch.zeros(4), _read_embedded).load()
    check_shape(found, allowed)
    return found


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Give what tells the memory that the block took: what is left of it, and the most, in bytes."""
    found = (0, 0)
    tracemalloc.start()
    try:
        yield lambda: found
    finally:
        found = tracemalloc.get_traced_memory()
        tracemalloc.stop()


@settings(max_examples=150, deadline=None)
@given(st.lists(PROGRAMS, min_size=1, max_size=5).map(joined) | OPCODES)
def test_programs_stay_within_their_budget(program):
    stream = b"\x80\x04" + program + b"."
    started = time.process_time()
    # a machine fails in every way there is; what reads files makes one error of them
    with traced() as memory, contextlib.suppress(Exception):
        run(stream)
    assert memory()[1] < limits.BYTES_PER_BYTE * len(stream) + FREE + SLACK
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "value",
    [
        b"]", b"}", b"\x8f", b")\x85", b"(", b"NN\x86", b"G\0\0\0\0\0\0\0\0", b"K\x05\x94", b"cm\nN\n", b"cm\nN\n)R",
        b"(\x91", b"M\x00\x10", b"\x8a\x01\x01", text("é"),
    ],
)  # fmt: skip
def test_each_opcode_pays_for_what_it_makes(value):
    program = b"(" + value * 20_000
    stream = io.BytesIO(program)
    paid = Budget(len(program))
    machine = Machine(stream, paid, lambda _: torch.zeros(4), _read_embedded)
    with traced() as memory, pytest.raises(EOFError):
        machine.load()
    assert memory()[0] <= paid.built


def test_entries_pay_for_what_they_make():
    for begin, end in ((b"}(", b"u"), (b"\x8f(", b"\x90"), (b"](", b"e")):
        entries = b"".join(b"J" + struct.pack("<i", number + 1000) for number in range(40_000))
        program = begin + entries + end
        paid = Budget(len(program))
        machine = Machine(io.BytesIO(program + b"."), paid, lambda _: torch.zeros(4), _read_embedded)
        with traced() as memory:
            machine.load()
        assert memory()[1] <= paid.built


def test_steps_are_bounded(monkeypatch):
    monkeypatch.setattr(limits, "MAX_STEPS", 100)
    with pytest.raises(UnsafeFileError, match="more than 100 steps"):
        run(b"(" + b"N" * 101 + b"l.")


def test_items_go_into_tables_only():
    for target in (call("torch.Size"), call("builtins.bytearray"), b"(l", b"N"):
        with pytest.raises(UnsafeFileError, match="sets entries of"):
            run(b"\x80\x02" + target + b"NNs.")


def test_names_are_short():
    with pytest.raises(UnsafeFileError, match="characters"):
        run(b"\x80\x04" + text("x" * 990) + text("y" * 20) + b"\x93.")


def test_keys():
    paid = Budget(0)
    check_keys(["x" * 10**6, 5, (1, ("a", frozenset([2]))), None, 2.5], paid)
    shared: tuple = ()
    for _ in range(30):
        shared = (shared, shared)
    for key in (shared, ("x" * 10**6,), 1 << 10**7, tuple(range(2000))):
        with pytest.raises(UnsafeFileError, match="too many parts"):
            check_keys([key], paid)


def test_shapes():
    def refused(value: object) -> str:
        with pytest.raises(UnsafeFileError) as caught:
            check_shape(value, Budget(0))
        return str(caught.value)

    deep: object = None
    shared: object = [None]
    for _ in range(300):
        deep, shared = [deep], {"a": shared, "b": [shared]}
    loop: list = []
    loop.append({"a": loop})
    assert "deeper than" in refused(deep)
    assert "deeper than" in refused(shared)
    assert "stand for more than" in refused(pickle.loads(laughs(10, 40) + b"."))
    assert "holds itself" in refused(loop)
    record = Stub("module.Name", state={})
    record.state.update(parent=[record], other=record)
    check_shape({"a": [record, record]}, Budget(0))


def test_a_mapped_file_is_the_same(tmp_path):
    content = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.empty(0, 2)}
    path = tmp_path / "x.pt"
    torch.save(content, path)
    found = read_torch(path, mapped=True)
    assert all(torch.equal(found[key], content[key]) for key in content)
    found["a"][0, 0] = 9  # into a copy
    assert read_torch(path)["a"][0, 0] == 0
