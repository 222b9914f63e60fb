import numpy as np
import pytest

from zoo.audio.io.chunking import Chunker, match_length, split_windows

UNIT, REACH = 4, 3  # samples per unit, units that the stand-in net sees on each side


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Smooth:
    """Mean over the neighbouring units, zeros beyond the ends; two values per unit. Notes the batches it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.valid: list[int] = []

    def __call__(self, rows: np.ndarray, valid) -> np.ndarray:
        self.shapes.append(rows.shape)
        self.valid += valid
        units = rows.reshape(len(rows), -1, UNIT).sum(2)
        padded = np.pad(units, ((0, 0), (REACH, REACH)))
        means = sum(padded[:, i : i + units.shape[1]] for i in range(2 * REACH + 1))
        return np.repeat(means, 2, axis=1).astype(np.float32)


def run_full(signal: np.ndarray) -> np.ndarray:
    padded = np.pad(signal, ((0, 0), (0, -signal.shape[1] % UNIT)))
    return Smooth()(padded, [signal.shape[1]] * len(signal))


def run_chunks(chunker: Chunker, signal: np.ndarray, compute, pieces: int = 5) -> np.ndarray:
    blocks = np.array_split(signal, pieces, axis=1)
    return np.concatenate(list(chunker.process(blocks, signal.shape[1], compute)), axis=-1)


@pytest.mark.parametrize("samples", [1, 3, 4, 79, 80, 81, 84, 160, 161, 400, 1001])
@pytest.mark.parametrize("overlap", [8, 10])
def test_a_net_that_sees_no_further_than_the_context_gives_the_whole(samples, overlap):
    chunker = Chunker(window=20, overlap=overlap, unit_samples=UNIT, batch=3)
    assert chunker.context >= REACH
    signal = noise(2, samples)
    np.testing.assert_allclose(run_chunks(chunker, signal, Smooth()), run_full(signal), atol=1e-5)


def test_cut_pads_the_end_and_fit_gives_the_length():
    signal = noise(2, 10)
    windows = list(split_windows(np.array_split(signal, 3, axis=1), [(0, 4), (3, 7), (8, 12)]))
    np.testing.assert_array_equal(windows[1], signal[:, 3:7])
    np.testing.assert_array_equal(windows[2], np.pad(signal[:, 8:], ((0, 0), (0, 2))))
    for samples in (1, 9, 10, 13):
        fitted = np.concatenate(list(match_length(np.array_split(signal, 3, axis=1), samples)), axis=1)
        np.testing.assert_array_equal(fitted, np.pad(signal, ((0, 0), (0, 3)))[:, :samples])


@pytest.mark.parametrize("units", [1, 19, 20, 21, 34, 35, 100, 250])
@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_a_stream_of_unknown_length_is_cut_on_the_same_grid(units, pieces):
    chunker = Chunker(window=20, overlap=6, unit_samples=UNIT, fades=False)
    assert (chunker.context, chunker.fade) == (REACH, 0)
    signal = noise(2, units * UNIT)
    net, reference = Smooth(), Smooth()
    blocks = [block for block in np.array_split(signal, pieces, axis=1) if block.size]
    result = np.concatenate(list(chunker.process_stream(blocks, lambda window: net(window, []))), axis=-1)
    np.testing.assert_array_equal(result, run_chunks(Chunker(20, 6, UNIT, 2, False), signal, reference))
    assert net.shapes == reference.shapes
    np.testing.assert_allclose(result, run_full(signal), atol=1e-5)
