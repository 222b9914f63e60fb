"""Pair Asterisk's prompts, at 8 kHz and at 16 kHz: python scripts/prepare_asterisk.py --output FOLDER.

Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-{wav,g722} hold the same prompts for narrowband and wideband
telephones. FOLDER gets them in time with each other, as AudioSR's data takes pairs: English prompts in
`train/{low,high}`, a selection of each other language in `valid/{low,high}`. Pairs whose bands do not agree are left
out. With `--versions N` one of eight English prompts is held out in `english/{low,high}`, and the others are written N
times, all but the first with both bands filtered at random, as other voices and microphones might have them.
Needs `pip install 'zoo[evidence]'`.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import soundfile
from scipy import signal

from zoo.audio.io import files

NARROW, WIDE, BITS = 8000, 16000, 64000  # Hz, Hz, bits/s
BAND = (800.0, 3000.0)  # Hz; both telephones pass it, and below it the filter of the narrowband one turns the phase
MAX_LAG = 80  # samples at 16 kHz
MIN_SECONDS, MIN_CORRELATION = 0.3, 0.9
TRAINED = "en"
HELD_OUT, HELD_OUT_SECONDS = 16, (1.5, 6.0)  # prompts of each other language, evenly chosen of those of such lengths
ENGLISH_EVERY = 8  # held out with `--versions`, of those of at least so many seconds
OCTAVES = 125, 250, 500, 1000, 2000, 4000, 8000  # Hz
FILTER_DB, PEAK = 3.0, 0.95  # deviation from one octave to the next; of a filtered pair

Pair = tuple[np.ndarray, np.ndarray]  # narrowband (T,), wideband (2 T,)
Pairs = dict[Path, Pair]


def align(narrow: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, float]:
    """Shift a wideband recording (T,) so that it is in time with the narrowband one (T // 2,).

    Returns the shifted recording and the correlation of both between 800 and 3,000 Hz.
    """
    filters = signal.butter(4, BAND, "bandpass", fs=WIDE, output="sos")
    upsampled = signal.sosfiltfilt(filters, signal.resample_poly(narrow, 2, 1))
    other = signal.sosfiltfilt(filters, wide)
    size = min(len(upsampled), len(other))
    correlations = signal.correlate(upsampled[:size], other[:size], "full", "fft")
    middle = size - 1
    lag = int(np.argmax(correlations[middle - MAX_LAG : middle + MAX_LAG + 1])) - MAX_LAG
    norm = float(np.linalg.norm(upsampled[:size]) * np.linalg.norm(other[:size])) or 1.0
    shifted = np.pad(wide, (lag, 0)) if lag >= 0 else wide[-lag:]
    return shifted, float(correlations[middle + lag]) / norm


def read_pair(path: Path) -> Pair | None:
    """Read a .g722 file and the .wav of its name: (T,) at 8 kHz, (2 T,) at 16 kHz; None where they do not agree."""
    from G722 import G722

    narrow, rate = soundfile.read(path.with_suffix(".wav"), dtype="float32")
    wide = np.asarray(G722(WIDE, BITS).decode(path.read_bytes()), np.float32) / 32768
    if rate != NARROW or len(narrow) < MIN_SECONDS * NARROW:
        return None
    wide, correlation = align(narrow, wide)
    size = min(len(narrow), len(wide) // 2)
    return (narrow[:size], wide[: 2 * size]) if correlation >= MIN_CORRELATION else None


def vary(narrow: np.ndarray, wide: np.ndarray, rng: np.random.Generator) -> Pair:
    """Filter a pair at random and at zero phase: gains walk from octave to octave; the result is scaled as one."""
    gains, results = rng.normal(0, FILTER_DB, len(OCTAVES)).cumsum(), []
    for audio, rate in ((narrow, NARROW), (wide, WIDE)):
        octaves = np.log2(np.fft.rfftfreq(len(audio), 1 / rate).clip(OCTAVES[0]))
        factors = 10 ** (np.interp(octaves, np.log2(OCTAVES), gains) / 20)
        results.append(np.fft.irfft(np.fft.rfft(audio) * factors, len(audio)).astype(np.float32))
    scale = np.float32(PEAK / max(float(np.abs(each).max()) for each in results))
    return results[0] * scale, results[1] * scale


def divide(pairs: Pairs, is_english: bool, hold_out: bool) -> dict[str, Pairs]:
    """Divide a voice's pairs: English ones into `train` and, where asked for, `english`; of others some for `valid`."""
    shortest, longest = (seconds * NARROW for seconds in HELD_OUT_SECONDS)
    lengths = {path: len(narrow) for path, (narrow, _) in pairs.items()}
    if is_english:
        held_out = [path for path, length in lengths.items() if length >= shortest][::ENGLISH_EVERY] if hold_out else []
        english = {"english": {path: pairs[path] for path in held_out}} if hold_out else {}
        return {"train": {path: pair for path, pair in pairs.items() if path not in held_out}, **english}
    usable = [path for path, length in lengths.items() if shortest <= length <= longest]
    numbers = np.linspace(0, len(usable) - 1, min(HELD_OUT, len(usable))).astype(int)
    return {"valid": {usable[number]: pairs[usable[number]] for number in numbers}}


def write_pair(folder: Path, stem: str, pair: Pair) -> None:
    """Write a pair of recordings as `{low,high}/STEM.wav`."""
    for band, audio, rate in zip(("low", "high"), pair, (NARROW, WIDE), strict=True):
        files.write(folder / band / f"{stem}.wav", audio, rate)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--sounds", type=Path, default=Path("/usr/share/asterisk/sounds"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--versions", type=int, default=0, help="of each English prompt (default: itself alone)")
    arguments = parser.parse_args()
    if find_spec("G722") is None:
        parser.error("the package G722 is missing: pip install 'zoo[evidence]'")
    if not arguments.sounds.is_dir():
        parser.error(f"--sounds {arguments.sounds}: no such folder; Debian's asterisk-core-sounds-* have it")
    for voice in sorted(arguments.sounds.iterdir()):
        paths = [path for path in sorted(voice.rglob("*.g722")) if path.with_suffix(".wav").is_file()]
        pairs = {path: pair for path in paths if (pair := read_pair(path)) is not None}
        rng = np.random.default_rng(0)
        for part, chosen in divide(pairs, voice.name.startswith(TRAINED), bool(arguments.versions)).items():
            for path, pair in chosen.items():
                stem = f"{voice.name[:2]}_{'_'.join(path.relative_to(voice).with_suffix('').parts)}"
                write_pair(arguments.output / part, stem, pair)
                for number in range(1, arguments.versions if part == "train" else 1):
                    write_pair(arguments.output / part, f"{stem}_{number}", vary(*pair, rng))
            minutes = sum(len(narrow) for narrow, _ in chosen.values()) / NARROW / 60
            print(f"{voice.name}: {len(chosen)} of {len(paths)} prompts, {minutes:.1f} minutes, in {part}")


if __name__ == "__main__":
    main()
