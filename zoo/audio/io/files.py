"""Audio files read with checks and written atomically: wav, flac, ogg, opus and mp3 through libsndfile.

libsndfile alone accepts a cut wav, ogg or mp3 and returns fewer samples without a word, and hands NaN through;
everything here turns such a file into one `AudioFileError` that names it.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import soundfile

from zoo.audio.io.containers import ContainerError, Layout, LayoutFile, inspect_container
from zoo.common.atomic_files import temporary_path
from zoo.common.checks import check_positive

log = logging.getLogger(__name__)

_FORMATS = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".opus": ("OGG", "OPUS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
}
_INTEGER_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32}

AUDIO_SUFFIXES: tuple[str, ...] = tuple(_FORMATS)
_UNREAD_SUFFIXES = (
    *(".3gp", ".aac", ".aif", ".aifc", ".aiff", ".alac", ".amr", ".ape", ".au", ".caf", ".m4a", ".m4b", ".mka", ".mp2"),
    *(".mp4", ".oga", ".ra", ".rf64", ".sph", ".w64", ".webm", ".wma", ".wv"),
)
BLOCK_SAMPLES = 1 << 18


class AudioFileError(ValueError):
    """A file that is not sound audio; the message is one line naming the file and the cause."""


@dataclass(frozen=True)
class AudioInfo:
    """What the header of an audio file says.

    Attributes:
        samples: samples per channel.
        subtype: libsndfile's name of the sample format, e.g. `PCM_16`.
    """

    sample_rate: int
    channels: int
    samples: int
    subtype: str

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.samples / self.sample_rate


def info(path: str | os.PathLike[str]) -> AudioInfo:
    """Read and check the header of an audio file without decoding it: `samples` is what `read` returns if it can."""
    with _open(Path(path), scan=False) as handle:
        return AudioInfo(handle.samplerate, handle.channels, handle.frames, handle.subtype)


def read(path: str | os.PathLike[str], start: int = 0, samples: int = -1) -> tuple[np.ndarray, int]:
    """Read a file or a part of it.

    Args:
        start: first sample, 0 <= start < length of the file.
        samples: number of samples; -1 reads to the end, and a part reaching past the end is cut there like a slice.

    Returns:
        Audio (C, T) float32 as stored (8- and 16-bit files: integer / full scale), and the sample rate in Hz.
    """
    path = Path(path)
    with _open(path) as handle:
        if not 0 <= start < handle.frames or samples < -1:
            raise ValueError(f"{path}: cannot read {samples} samples from {start} on, the file holds {handle.frames}")
        count = handle.frames - start if samples == -1 else min(samples, handle.frames - start)
        skip = 0
        if start and handle.format == "MP3":
            skip = start  # libmpg123 seeks by frames with a cold bit reservoir: only decoding from the start is exact
        elif start:
            handle.seek(start)
        audio = _decode(handle, path, start - skip, skip + count)[skip:]
        return np.ascontiguousarray(audio.T), handle.samplerate


def read_mono(path: str | os.PathLike[str], sample_rate: int | None = None) -> np.ndarray:
    """Read a whole file as one channel (T,) float32, the mean of its channels, resampled where a rate is given."""
    return read_mixed(path, sample_rate)[0]


def read_mixed(path: str | os.PathLike[str], sample_rate: int | None = None) -> tuple[np.ndarray, float]:
    """Read a whole file like `read_mono`.

    Returns:
        Audio (T,) float32, and by how many dB its power is below the mean power of the channels: inf where they cancel.
    """
    audio, rate = read(path)
    mono = audio[0] if len(audio) == 1 else audio.mean(axis=0, dtype=np.float32)
    loss_db = 0.0
    if len(audio) > 1 and (power := float(np.square(audio, dtype=np.float64).mean())):
        mixed = float(np.square(mono, dtype=np.float64).mean())
        loss_db = 10 * math.log10(power / mixed) if mixed else math.inf
    if sample_rate is None or sample_rate == rate:
        return mono, loss_db
    from zoo.audio.io.resample import resample_array  # imports torch, which header checks and writers do not need

    return resample_array(mono, rate, sample_rate), loss_db


Channels = Literal["mono", "each", "mid_side"]


def read_channels(path: str | os.PathLike[str], sample_rate: int, channels: Channels) -> np.ndarray:
    """Read a whole file (C, T) float32, resampled.

    Args:
        channels: "mono": the mean of its channels. "each": left and right of a stereo file. "mid_side": their mean and
            half of their difference. A file that is not stereo is one channel, the mean of those that it has.
    """
    if channels == "mono" or info(path).channels != 2:
        return read_mono(path, sample_rate)[None]
    audio, rate = read(path)
    if channels == "mid_side":
        audio = np.stack([audio[0] + audio[1], audio[0] - audio[1]]) / np.float32(2)
    if rate == sample_rate:
        return audio
    from zoo.audio.io.resample import resample_array

    return np.stack([resample_array(each, rate, sample_rate) for each in audio])


def read_blocks(path: str | os.PathLike[str], block_samples: int) -> Iterator[np.ndarray]:
    """Stream a file in blocks (C, n) float32, the last of which may be shorter, with the same checks as `read`."""
    path = Path(path)
    check_positive(block_samples=block_samples)
    with _open(path) as handle:
        for start in range(0, handle.frames, block_samples):
            block = _decode(handle, path, start, min(block_samples, handle.frames - start))
            yield np.ascontiguousarray(block.T)


class AudioWriter:
    """Writes an audio file piece by piece; the file appears under its name only when the block ends without an error.

    Args:
        path: target; the suffix picks the container. Missing parent folders are made.
        subtype: libsndfile's sample format; None takes the container's usual one (PCM_16, VORBIS, ...).

    Raises:
        ValueError: unknown suffix, or a subtype or rate that the container cannot hold.
    """

    def __init__(
        self, path: str | os.PathLike[str], sample_rate: int, channels: int, subtype: str | None = "PCM_16"
    ) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in _FORMATS:
            raise ValueError(f"{self.path}: unknown audio suffix, expected one of {', '.join(AUDIO_SUFFIXES)}")
        container, usual = _FORMATS[self.path.suffix.lower()]
        self._subtype = usual if subtype is None or container in ("OGG", "MP3") else subtype
        self._channels = channels
        self._samples = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = temporary_path(self.path)
        try:
            self._handle = soundfile.SoundFile(
                self._temporary, "w", sample_rate, channels, self._subtype, format=container
            )
        except (soundfile.SoundFileError, ValueError) as error:
            self._temporary.unlink(missing_ok=True)
            raise ValueError(
                f"{self.path}: cannot write {container} {self._subtype} with {channels} channels at "
                f"{sample_rate} Hz ({_reason(error)})"
            ) from error

    def write(self, audio: np.ndarray) -> None:
        """Append samples; all but FLOAT and DOUBLE files are clipped to [-1, 1] and rounded to the nearest step.

        Args:
            audio: (T,) or (C, T) float.
        """
        audio = np.atleast_2d(np.asarray(audio, dtype=np.float32))
        if audio.ndim != 2 or len(audio) != self._channels:
            raise ValueError(f"{self.path}: expected {self._channels} channels (C, T), got shape {audio.shape}")
        for first in range(0, audio.shape[1], BLOCK_SAMPLES):  # libsndfile's vorbis encoder overflows on long arrays
            block = audio[:, first : first + BLOCK_SAMPLES]
            if not np.isfinite(block).all():
                raise ValueError(f"{self.path}: refusing to write NaN or infinite samples")
            try:
                self._handle.write(_quantize(block, self._subtype).T)
            except soundfile.SoundFileError as error:
                raise OSError(f"{self.path}: writing failed, is the disk full? ({_reason(error)})") from error
            self._samples += block.shape[1]

    def __enter__(self) -> AudioWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._handle.close()
            if kind is None:
                if self._samples == 0:
                    raise ValueError(f"{self.path}: nothing was written, an audio file needs at least one sample")
                self._verify()
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)

    def _verify(self) -> None:
        """An encoder may lose its last block on a full disk when it closes, without an error."""
        try:
            samples = info(self._temporary).samples
        except AudioFileError as error:
            raise OSError(f"{self.path}: the written file cannot be read back, is the disk full? ({error})") from error
        if samples != self._samples:
            raise OSError(f"{self.path}: {samples} of {self._samples} samples arrived, is the disk full?")


def _quantize(audio: np.ndarray, subtype: str) -> np.ndarray:
    """Clip for every bounded format; round integers ourselves because libsndfile truncates towards minus infinity."""
    if subtype in ("FLOAT", "DOUBLE"):
        return audio
    if subtype not in _INTEGER_BITS:
        return np.clip(audio, -1.0, 1.0)
    bits = _INTEGER_BITS[subtype]
    scale = 2.0 ** (bits - 1)
    steps = np.clip(np.rint(audio.astype(np.float64) * scale), -scale, scale - 1)
    return (steps * 2.0 ** (32 - bits)).astype(np.int32)


def write(path: str | os.PathLike[str], audio: np.ndarray, sample_rate: int, subtype: str | None = None) -> None:
    """Write a file atomically, see `AudioWriter`.

    Args:
        path: target; the suffix picks the container.
        audio: (T,) or (C, T) float; clipped to [-1, 1] unless the subtype is FLOAT or DOUBLE.
        subtype: libsndfile's sample format; None takes the container's usual one.
    """
    audio = np.atleast_2d(np.asarray(audio))
    with AudioWriter(path, sample_rate, len(audio), subtype) as writer:
        writer.write(audio)


def find_audio_files(path: str | os.PathLike[str], suffixes: Sequence[str] = AUDIO_SUFFIXES) -> list[Path]:
    """List the files below a folder, sorted, or the one file given; one warning says which are left out and why.

    Hidden files are ignored; links to files are followed, links to folders are not.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: the one file has another suffix.
    """
    path = Path(path)
    if path.is_dir():
        paths, skipped = _scan(path, suffixes)
        if skipped:
            reasons = [f"{len(names)} {reason} ({_show(min(names))})" for reason, names in sorted(skipped.items())]
            _warn_once(
                f"{_show(os.fspath(path))}: left out {', '.join(reasons)}; convert other formats to wav or flac, links "
                "to folders are not followed"
            )
        return paths
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{path}: expected a file ending in {', '.join(suffixes)}")
    return [path]


def _scan(folder: str | os.PathLike[str], suffixes: Sequence[str]) -> tuple[list[Path], dict[str, list[str]]]:
    """List the files below a folder, sorted, and the paths of what is left out, by reason.

    Args:
        suffixes: of the files, lower case with the dot. Files of other audio formats are left out with a reason.
    """
    folder = os.fspath(folder)
    unread = _UNREAD_SUFFIXES if set(AUDIO_SUFFIXES) <= set(suffixes) else ()
    paths: list[Path] = []
    skipped: dict[str, list[str]] = {}
    folders = [folder]
    while folders:
        inside = folders.pop()
        try:
            entries = list(os.scandir(inside))
        except FileNotFoundError:
            if inside == folder:
                raise
            continue  # deleted meanwhile
        except PermissionError:
            skipped.setdefault("unreadable folder", []).append(inside)
            continue
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_dir():
                skipped.setdefault("linked folder", []).append(entry.path)
            elif entry.name[0] == "." or suffix not in (*suffixes, *unread):
                continue
            elif not entry.is_file():
                skipped.setdefault("broken link", []).append(entry.path)
            elif suffix in unread:
                skipped.setdefault(suffix, []).append(entry.path)
            elif not _is_utf8(entry.path[len(folder) :]):
                skipped.setdefault("name that is not UTF-8", []).append(entry.path)
            else:
                paths.append(Path(entry.path))
    return sorted(paths), skipped


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _show(path: str) -> str:
    return path if _is_utf8(path) else repr(os.fsencode(path))


@functools.lru_cache(maxsize=1000)
def _warn_once(message: str) -> None:
    """A run lists its folders several times."""
    log.warning("%s", message)


class _Decoder(soundfile.SoundFile):
    """Decodes a file from its start to its end.

    soundfile seeks to where it already is after every read, which restarts the mp3 decoder and damages the sound.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._samples = layout.samples
        is_plain = layout == Layout(0, path.stat().st_size)
        self._source = None if is_plain else LayoutFile(path, layout)
        try:
            super().__init__(path if self._source is None else self._source)
        except BaseException:
            if self._source is not None:
                self._source.close()
            raise

    @property
    def frames(self) -> int:
        """Samples per channel."""
        return super().frames if self._samples is None else self._samples

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        super().close()
        if self._source is not None:
            self._source.close()


def _open(path: Path, scan: bool = True) -> _Decoder:
    """Open a file for reading from its start to its end; it has at least one sample.

    Args:
        scan: see `inspect_container`.

    Raises:
        AudioFileError: the file is empty, cut, joined of several, or no audio.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such audio file")
    try:
        decoder = _Decoder(path, inspect_container(path, scan))
    except ContainerError as error:
        raise AudioFileError(f"{path}: {error}") from error
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: soundfile takes *.raw for headerless samples
        raise AudioFileError(f"{path}: not an audio file that can be decoded ({_reason(error)})") from error
    if decoder.frames == 0:
        decoder.close()
        raise AudioFileError(f"{path}: holds no samples (zero length, or cut so short that nothing can be decoded)")
    return decoder


def _reason(error: Exception) -> str:
    """Say in one line, without the path, what libsndfile complains about."""
    text = str(getattr(error, "error_string", "") or error)
    # The mp3 decoder's words for any header it does not know; the file does exist here.
    return "format not recognised" if "does not exist" in text else text.rstrip(".").replace("\n", " ")


def _decode(handle: _Decoder, path: Path, start: int, samples: int) -> np.ndarray:
    """Decode in blocks, because headers lie about lengths and memory must not follow them.

    Args:
        handle: from `_open`, standing at `start`.

    Returns:
        Audio (samples, C) float32.

    Raises:
        AudioFileError: the file ends before, or holds values that are not finite.
    """
    blocks: list[np.ndarray] = []
    missing = samples
    while missing > 0:
        try:
            block = handle.read(min(missing, BLOCK_SAMPLES), dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise AudioFileError(
                f"{path}: damaged, cut or joined of several files, decoding stopped ({_reason(error)})"
            ) from error
        if len(block) == 0:
            position = start + samples - missing
            raise AudioFileError(
                f"{path}: cut, {position} samples could be decoded where the header promises {handle.frames}"
            )
        if not np.isfinite(block).all():
            raise AudioFileError(f"{path}: holds NaN or infinite samples")
        blocks.append(block)
        missing -= len(block)
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
