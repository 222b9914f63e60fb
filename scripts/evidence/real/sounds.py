"""AudioSR on music and sounds at 44.1 kHz: Sonic Pi's samples, every fifth held out, band-limited at three cut-offs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.evidence import audiosr
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder
from scripts.evidence.gallery import save_sounds
from scripts.evidence.real.prompts import compare, distances, fit_stages
from zoo.audio.io import files
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.evaluation.evaluate import LINEAR, NOISE, RESTORED
from zoo.audiosr.inference.restore import Restorer
from zoo.runs.load import load

NAME, DATA, HELD_OUT = "audiosr/sounds", "sounds", "held_out.txt"  # ZOO_DATA/sounds: scripts/prepare_evidence.sh
SAMPLE_RATE, N_FFT, HOP_LENGTH = 44100, 2048, 512  # Hz, samples
CUTOFFS_HZ, TRAINED_HZ, STEPS = (4000, 8000, 12000), [2000, 13000], 2000  # steps of the diffusion
SHOWN, SHOWN_SECONDS, SHOWN_CUTOFF_HZ = ("loop_", "guit_"), 4.0, 8000.0  # in the gallery


def held_out_sounds() -> list[Path]:
    """Every fifth recording by name: no training hears them."""
    return files.find_audio_files(data_folder() / DATA)[::5]


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """The three trainings of the demo at 44.1 kHz, of equally many frames, the last a shorter one."""
    if (data_folder() / DATA).is_dir():  # otherwise only the recipe is asked for
        root.mkdir(parents=True, exist_ok=True)
        (root / HELD_OUT).write_text("".join(f"{path.name}\n" for path in held_out_sounds()), encoding="utf-8")
    data, model = "data__init_args", "model__init_args"
    sizes = {"n_fft": N_FFT, "hop_length": HOP_LENGTH}
    features = {f"{model}__features__init_args__{key}": value for key, value in sizes.items()}
    mel = {f"{model}__mel__init_args__{key}": value for key, value in {**sizes, "win_length": N_FFT}.items()}
    grid = {f"{data}__split__samples": 2 * SAMPLE_RATE, f"{data}__split__cutoffs_hz": str(list(CUTOFFS_HZ))}
    length, simulated = f"{data}__segment_samples", f"{data}__simulation__init_args__cutoff_hz"
    shorter = {"trainer__max_steps": STEPS, "trainer__val_check_interval": STEPS}
    stages: list[dict[str, Any]] = [
        {**features, **grid, length: 40 * HOP_LENGTH},
        {**mel, length: 32 * HOP_LENGTH},
        {**features, **grid, length: 80 * HOP_LENGTH, simulated: str(TRAINED_HZ), **shorter},
    ]
    shared = {f"{data}__root": data_folder() / DATA, f"{data}__sample_rate": SAMPLE_RATE}
    return fit_stages(root, seed, {**shared, f"{data}__split__val_list": root / HELD_OUT}, stages)


def measure(root: Path, quick: bool = False) -> Figures:
    """Distances above the cut-off, by cut-off; two recordings go into the gallery."""
    run = root / audiosr.STAGES[-1]
    values = distances(run)
    figures: Figures = {}
    for cutoff_hz in CUTOFFS_HZ:
        names = sorted(name for name in values[RESTORED] if name.endswith(f"@{cutoff_hz}"))
        figures |= compare(f"{cutoff_hz} Hz", values, names)
    restorer = load(run)
    assert isinstance(restorer, Restorer)
    for start in SHOWN:
        path = next(path for path in held_out_sounds() if path.name.startswith(start))
        high = files.read_mono(path, SAMPLE_RATE)[: int(SHOWN_SECONDS * SAMPLE_RATE)]
        low = lowpass(high, SAMPLE_RATE, SHOWN_CUTOFF_HZ)
        restored = restorer(low, SAMPLE_RATE, cutoff_hz=SHOWN_CUTOFF_HZ)
        save_sounds(root, path.stem, {"input": low, "restored": restored, "original": high}, SAMPLE_RATE)
    return figures


DEMO = Demo(NAME, plan, measure, data=(DATA,))
CLAIMS = tuple(
    Claim(NAME, f"cut off at {cutoff_hz // 1000} kHz: LSD above, to {other}", f"{cutoff_hz} Hz: LSD-HF to {system}",
          EACH, 1.0)
    for cutoff_hz in CUTOFFS_HZ
    for system, other in ((NOISE, "shaped noise"), (LINEAR, "linear interpolation"))
)  # fmt: skip
