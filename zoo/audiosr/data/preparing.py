"""Preparing folders of audio: pairs of full-band and band-limited files, and recordings joined into one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.progress import track

from zoo.audio.io import files
from zoo.audio.io.resample import StreamResampler
from zoo.audiosr.data.simulate import STEP_HZ, lowpass, top
from zoo.common.atomic_files import delete_temporary_files
from zoo.common.journal import begin_output
from zoo.common.locks import writes_into
from zoo.common.parallel import map_in_processes

log = logging.getLogger(__name__)

Job = TypeVar("Job")
Outcome = tuple[str, str]  # done, skipped or failed; and why it failed

GUARD = 5 / 6  # cut-off as a share of half the low rate: 5 kHz at 12 kHz, the original's
SPLICED = (".wav", ".flac")
_BLOCK_SAMPLES = 1 << 18
_ORDER = 8
_DEPTHS = ("PCM_16", "PCM_24", "PCM_32", "FLOAT")  # of the joined file: the deepest that its parts need
_BYTES = {"PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4}
_WAV_BYTES = 2**32 - 2**16  # a wav counts its bytes in 32 bits
SETTINGS_NAME = "preprocess.json"


@writes_into("out_high", "out_low")
def preprocess(
    in_dir: Path,
    out_high: Path,
    out_low: Path,
    sample_rate: int = 48000,
    low_sample_rate: int = 12000,
    mp3_lpf_hz: float = -1.0,
    workers: int = 0,
) -> dict[str, int]:
    """Write pairs of full-band and band-limited wavs of a folder, for `mode: paired`.

    Both are mono, equally long and aligned. The band of the second ends at 5/6 of half its low rate. The same call
    again goes on after a kill.

    Args:
        in_dir: folder tree of wav, flac, ogg, opus or mp3.
        out_high: folder for the full-band files, such as data/train/high: the same tree.
        out_low: folder for their counterparts, such as data/train/low, with the settings in `preprocess.json`.
        sample_rate: of both, in Hz.
        low_sample_rate: rate that the second go down to and back from, in Hz.
        mp3_lpf_hz: first limits both at this frequency, in Hz, against what MP3 leaves above it; -1 is off. (The
            original's 16000 also takes from the target what a model should learn.)
        workers: processes; 0 works in this one.

    Returns:
        Counts `done`, `skipped` (finished before) and `failed`; files that failed are logged.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no audio, folders within one another, impossible rates, or `out_low` was begun with other settings.
        OSError: the disk is full or a worker died; the same call goes on.
    """
    if not 0 < low_sample_rate < sample_rate:
        raise ValueError(f"expected 0 < low_sample_rate < sample_rate, found {low_sample_rate} and {sample_rate} Hz")
    if mp3_lpf_hz != -1 and not 0 < mp3_lpf_hz <= top(sample_rate):
        raise ValueError(f"mp3_lpf_hz: expected -1 or up to {top(sample_rate):g} Hz, found {mp3_lpf_hz:g}")
    if not in_dir.is_dir():
        raise FileNotFoundError(f"{in_dir}: no such folder")
    _check_apart(in_dir, out_high, out_low)
    sources = files.find_audio_files(in_dir)
    if not sources:
        raise ValueError(f"{in_dir}: no file ends in {', '.join(files.AUDIO_SUFFIXES)}")
    settings: dict[str, Any] = {
        "sample_rate": sample_rate,
        "low_sample_rate": low_sample_rate,
        "mp3_lpf_hz": mp3_lpf_hz,
    }
    begin_output(out_low, settings, SETTINGS_NAME)
    for folder in (out_high, out_low):
        delete_temporary_files(folder)
    stems = Counter(path.with_suffix("") for path in sources)
    jobs = []
    for path in sources:
        name = path.relative_to(in_dir)
        name = name.with_suffix(".wav") if stems[path.with_suffix("")] == 1 else name.with_name(f"{name.name}.wav")
        jobs.append((path, out_high / name, out_low / name))
    return _count(partial(_make_pair, **settings), jobs, workers, "preprocess")


def _check_apart(in_dir: Path, *outputs: Path) -> None:
    places = [in_dir.resolve(), *(path.resolve() for path in outputs)]
    for first in places:
        if sum(place == first or place.is_relative_to(first) for place in places) > 1:
            raise ValueError(
                f"{in_dir}, {outputs[0]} and {outputs[1]}: none of the folders may be, or lie in, another one"
            )


def _make_pair(paths: tuple[Path, Path, Path], sample_rate: int, low_sample_rate: int, mp3_lpf_hz: float) -> Outcome:
    source, high_path, low_path = paths
    if high_path.is_file() and low_path.is_file():
        return "skipped", ""
    try:
        high = files.read_mono(source, sample_rate)
    except files.AudioFileError as error:
        return "failed", str(error)
    if mp3_lpf_hz > 0:
        high = lowpass(high, sample_rate, mp3_lpf_hz, "butter", _ORDER)
    cutoff_hz = max(STEP_HZ, STEP_HZ * round(GUARD * low_sample_rate / 2 / STEP_HZ))
    low = lowpass(high, sample_rate, cutoff_hz, "butter", _ORDER, resample=True)
    peak = max(1.0, float(np.abs(high).max()), float(np.abs(low).max()))
    files.write(high_path, high / peak, sample_rate)
    files.write(low_path, low / peak, sample_rate)
    return "done", ""


def splice(folder: Path, output: Path, each: bool = False, overwrite: bool = False, workers: int = 0) -> dict[str, int]:
    """Join the wav and flac files of a folder into one wav, of any length, in the order of their names.

    The result has the highest rate, most channels and deepest samples among its parts; mono parts go to all channels.

    Args:
        folder: with the files, or with --each true the folders of files.
        output: the wav; with --each true a folder, in which A/B becomes A/B.wav.
        each: join the files of each folder below FOLDER.
        overwrite: write also what is there already.
        workers: processes, with --each true; 0 works in this one.

    Returns:
        Counts `done`, `skipped` (there before) and `failed`; what failed is logged.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: nothing to join, or an output that would be joined by the next call.
        OSError: the disk is full.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if output.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"output {output} lies in {folder} and would be joined next time; choose another place")
    if not each and output.suffix.lower() != ".wav":
        raise ValueError(f"output {output}: expected a name that ends in .wav")
    folders = sorted({path.parent for path in files.find_audio_files(folder, SPLICED)})
    folders = [place for place in folders if (place != folder) == each]
    if not folders:
        raise ValueError(f"{folder}: no {' or '.join(SPLICED)} {'in any folder below it' if each else 'in it'}")
    jobs = []
    for place in folders:
        name = place.relative_to(folder)
        jobs.append((place, output / name.with_name(f"{name.name}.wav") if each else output))
    return _count(partial(_join, overwrite=overwrite), jobs, workers, "splice")


def _join(paths: tuple[Path, Path], overwrite: bool) -> Outcome:
    folder, target = paths
    if target.is_file() and not overwrite:
        return "skipped", ""
    parts = [path for path in files.find_audio_files(folder, SPLICED) if path.parent == folder]
    try:
        facts = [files.info(path) for path in parts]
        rate = max(each.sample_rate for each in facts)
        channels = max(each.channels for each in facts)
        subtype = _DEPTHS[max(_depth(each.subtype) for each in facts)]
        odd = [path for path, each in zip(parts, facts, strict=True) if each.channels not in (1, channels)]
        if odd:
            return "failed", f"{odd[0]}: neither mono nor {channels} channels like others of its folder"
        size = sum(each.samples * rate / each.sample_rate for each in facts) * channels * _BYTES[subtype]
        if size > _WAV_BYTES:
            return "failed", f"{folder}: {size / 2**30:.1f} GiB joined, and a wav holds 4; split the folder"
        with files.AudioWriter(target, rate, channels, subtype) as writer:
            for path, each in zip(parts, facts, strict=True):
                stream = StreamResampler(each.sample_rate, rate, each.channels)
                for block in files.read_blocks(path, _BLOCK_SAMPLES):
                    writer.write(_spread(stream.push(block), channels))
                writer.write(_spread(stream.push(np.zeros((each.channels, 0), np.float32), last=True), channels))
    except files.AudioFileError as error:
        return "failed", str(error)
    return "done", ""


def _depth(subtype: str) -> int:
    if subtype in _DEPTHS:
        return _DEPTHS.index(subtype)
    return 0 if subtype in ("PCM_S8", "PCM_U8", "ALAW", "ULAW") else len(_DEPTHS) - 1


def _spread(block: np.ndarray, channels: int) -> np.ndarray:
    return block if len(block) == channels else np.repeat(block, channels, axis=0)


def _count(function: Callable[[Job], Outcome], jobs: Sequence[Job], workers: int, title: str) -> dict[str, int]:
    counts = {"done": 0, "skipped": 0, "failed": 0}
    for status, cause in track(map_in_processes(function, jobs, workers), title, len(jobs)):
        counts[status] += 1
        if cause:
            log.warning("%s", cause)
    return counts
