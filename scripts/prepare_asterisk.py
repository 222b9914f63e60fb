"""Pair Asterisk's prompts, at 8 kHz and at 16 kHz: python scripts/prepare_asterisk.py --output FOLDER.

Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-{wav,g722} hold the same prompts for narrowband and wideband
telephones. FOLDER gets `narrow/LANGUAGE/*.wav` at 8 kHz and `wide/LANGUAGE/*.wav` at 16 kHz, in time with each other.
Pairs whose bands do not agree are left out. Needs `pip install 'zoo[evidence]'`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import G722
import numpy as np
import soundfile
from scipy import signal

from zoo.audio.io import files

NARROW, WIDE, BITS = 8000, 16000, 64000  # Hz, Hz, bits/s
BAND = (800.0, 3000.0)  # Hz; both telephones pass it, and below it the filter of the narrowband one turns the phase
MAX_LAG = 80  # samples at 16 kHz
MIN_SECONDS, MIN_CORRELATION = 0.3, 0.9


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


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--sounds", type=Path, default=Path("/usr/share/asterisk/sounds"))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    for voice in sorted(arguments.sounds.iterdir()):
        paths = [path for path in sorted(voice.rglob("*.g722")) if path.with_suffix(".wav").is_file()]
        seconds = count = 0.0
        for path in paths:
            narrow, rate = soundfile.read(path.with_suffix(".wav"), dtype="float64")
            samples = G722.G722(WIDE, BITS).decode(path.read_bytes())
            wide = np.asarray(samples, np.float64) / 32768
            if rate != NARROW or len(narrow) < MIN_SECONDS * NARROW:
                continue
            wide, correlation = align(narrow, wide)
            if correlation < MIN_CORRELATION:
                continue
            size = min(len(narrow), len(wide) // 2)
            name = f"{voice.name}/{'_'.join(path.relative_to(voice).with_suffix('').parts)}.wav"
            files.write(arguments.output / "narrow" / name, narrow[:size].astype(np.float32), NARROW)
            files.write(arguments.output / "wide" / name, wide[: 2 * size].astype(np.float32), WIDE)
            count, seconds = count + 1, seconds + size / NARROW
        print(f"{voice.name}: {count:.0f} of {len(paths)} prompts, {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
