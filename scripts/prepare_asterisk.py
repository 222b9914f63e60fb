"""Pair Asterisk's prompts, at 8 kHz and at 16 kHz: python scripts/prepare_asterisk.py --output FOLDER.

Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-{wav,g722} hold the same prompts for narrowband and wideband
telephones. FOLDER gets them in time with each other, as AudioSR's data takes pairs: English prompts in
`train/{low,high}`, a selection of each other language in `valid/{low,high}`. Pairs whose bands do not agree are left
out. Needs `pip install 'zoo[evidence]'`.
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


def read_pair(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Read a .g722 file and the .wav of its name: (T,) at 8 kHz, (2 T,) at 16 kHz; None where they do not agree."""
    from G722 import G722

    narrow, rate = soundfile.read(path.with_suffix(".wav"), dtype="float32")
    wide = np.asarray(G722(WIDE, BITS).decode(path.read_bytes()), np.float32) / 32768
    if rate != NARROW or len(narrow) < MIN_SECONDS * NARROW:
        return None
    wide, correlation = align(narrow, wide)
    size = min(len(narrow), len(wide) // 2)
    return (narrow[:size], wide[: 2 * size]) if correlation >= MIN_CORRELATION else None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--sounds", type=Path, default=Path("/usr/share/asterisk/sounds"))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if find_spec("G722") is None:
        parser.error("the package G722 is missing: pip install 'zoo[evidence]'")
    if not arguments.sounds.is_dir():
        parser.error(f"--sounds {arguments.sounds}: no such folder; Debian's asterisk-core-sounds-* have it")
    for voice in sorted(arguments.sounds.iterdir()):
        paths = [path for path in sorted(voice.rglob("*.g722")) if path.with_suffix(".wav").is_file()]
        pairs = {path: pair for path in paths if (pair := read_pair(path)) is not None}
        part = "train" if voice.name.startswith(TRAINED) else "valid"
        if part == "valid":
            low, high = (seconds * NARROW for seconds in HELD_OUT_SECONDS)
            usable = [path for path, (narrow, _) in pairs.items() if low <= len(narrow) <= high]
            pairs = {usable[int(number)]: pairs[usable[int(number)]]
                     for number in np.linspace(0, len(usable) - 1, min(HELD_OUT, len(usable)))}  # fmt: skip
        for path, (narrow, wide) in pairs.items():
            name = f"{voice.name[:2]}_{'_'.join(path.relative_to(voice).with_suffix('.wav').parts)}"
            files.write(arguments.output / part / "low" / name, narrow, NARROW)
            files.write(arguments.output / part / "high" / name, wide, WIDE)
        minutes = sum(len(narrow) for narrow, _ in pairs.values()) / NARROW / 60
        print(f"{voice.name}: {len(pairs)} of {len(paths)} prompts, {minutes:.1f} minutes, in {part}")


if __name__ == "__main__":
    main()
