"""AudioSR on real telephone pairs: prompts at 8 kHz and as wideband, trained on English, judged on other languages.

All English prompts are of one voice, so that each is also trained on with other spectra. One of eight is held out for
word error rates, to Whisper's transcripts of the wideband recordings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.evidence import audiosr
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder, fit_step
from scripts.evidence.gallery import save_sounds
from zoo.audio.evaluation.asr import ASR, normalize_text
from zoo.audio.io import files
from zoo.audiosr.evaluation.evaluate import CEILING, LINEAR, NOISE, RESTORED, EvaluationOptions, evaluate
from zoo.audiosr.inference.restore import Restorer
from zoo.common.statistics import bootstrap_mean
from zoo.runs.load import load

NAME, DATA, WHISPER = "audiosr/prompts", "asterisk_varied", "whisper"  # of ZOO_DATA: scripts/prepare_evidence.sh
LANGUAGES = {"es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"}
SAMPLE_RATE, STEPS = 16000, 3000  # Hz; steps of the diffusion
WER_GAIN = "WER: gain on the input"
DRAWS = 1000  # of a bootstrap over prompts
SHOWN, SHOWN_SECONDS = ("es", "fr"), 3.0  # languages in the gallery


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """Autoencoder and vocoder on the wideband prompts, the diffusion on the pairs."""
    data = data_folder() / DATA
    steps = {"trainer__max_steps": STEPS, "trainer__val_check_interval": STEPS}
    vocoder = {"data__init_args__root": data / "train" / "high", "data__init_args__split__val_list": "null"}
    stages: list[dict[str, Any]] = [{}, vocoder, {"data__init_args__mode": "paired", **steps}]
    return fit_stages(root, seed, {"data__init_args__root": data}, stages)


def fit_stages(
    root: Path, seed: int, shared: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]
) -> Iterator[EvidenceStep]:
    """Steps of the three trainings; what is shared by all, and what each changes of its recipe."""
    parts = {key.replace(".", "__"): root / part for key, part in zip(audiosr.PARTS, audiosr.STAGES, strict=False)}
    for stage, changes in zip(audiosr.STAGES, stages, strict=True):
        trained = parts if stage == audiosr.STAGES[-1] else {}
        changed = {"data__init_args__seed": seed, **shared, **changes, **trained}
        yield fit_step(root, stage, f"audiosr/{stage}", seed, **changed)


def measure(root: Path, quick: bool = False) -> Figures:
    """Distances above the found edge of the band by language, word error rates of English; see `compare`.

    Two prompts go into the gallery.
    """
    values = distances(root / audiosr.STAGES[-1])
    figures: Figures = {}
    for language in LANGUAGES:
        names = sorted(name for name in values[RESTORED] if Path(name).name.startswith(language))
        figures |= compare(language, values, names)
    restorer = load(root / audiosr.STAGES[-1])
    assert isinstance(restorer, Restorer)
    _show(root, restorer)
    return figures | measure_words(restorer, 8 if quick else 1)


def distances(run: Path) -> dict[str, dict[str, float]]:
    """Evaluate a run of the last stage: the log-spectral distance above the band's edge by system and clip."""
    values: dict[str, dict[str, float]] = {}
    for row in evaluate(run, run / audiosr.FOLDER, EvaluationOptions()):
        if row["status"] == "done" and np.isfinite(row["lsd_hf"]):
            values.setdefault(row["system"], {})[row["name"]] = float(row["lsd_hf"])
    return values


def compare(group: str, values: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> Figures:
    """Mean distance of a group's clips, and its ratio to the baselines' means with 95 % of a bootstrap over clips."""
    table = {
        system: np.array([values[system][name] for name in names]) for system in (RESTORED, NOISE, LINEAR, CEILING)
    }
    rows = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    figures: Figures = {f"{group}: LSD-HF": float(table[RESTORED].mean())}
    for system in (NOISE, LINEAR, CEILING):
        ratios = table[RESTORED][rows].mean(1) / table[system][rows].mean(1)
        name = f"{group}: LSD-HF to {system}"
        figures[name] = float(table[RESTORED].mean() / table[system].mean())
        figures[f"{name}: low"], figures[f"{name}: high"] = map(float, np.quantile(ratios, (0.025, 0.975)))
    return figures


def measure_words(restorer: Restorer, every: int = 1) -> Figures:
    """Word error rates of held-out English prompts, before and after, to transcripts of the wideband recordings.

    A prompt's errors count up to its words: where Whisper falls into a loop it writes hundreds. Each with 95 % of a
    bootstrap over prompts.
    """
    asr, folder = ASR(str(data_folder() / WHISPER)), data_folder() / DATA / "english"
    rows = []
    for path in files.find_audio_files(folder / "high")[::every]:
        low, high = (files.read_mono(each, SAMPLE_RATE) for each in (folder / "low" / path.name, path))
        if normalize_text(text := asr.transcribe(high)):
            before, after = (asr(audio, None, text) for audio in (low, restorer(low, SAMPLE_RATE)))
            rows.append((min(before["wer"], 1.0), min(after["wer"], 1.0), before["words"]))
    before, after, words = np.array(rows).T
    figures: Figures = {}
    for name, values in (("WER: input", before), ("WER: restored", after), (WER_GAIN, before - after)):
        interval = bootstrap_mean(values, words)
        figures |= {f"{name}{end}": value for end, value in zip(("", ": low", ": high"), interval, strict=True)}
    return figures


def _show(root: Path, restorer: Restorer) -> None:
    """Restore one prompt of two languages for the gallery."""
    valid = data_folder() / DATA / "valid"
    for language in SHOWN:
        path = sorted((valid / "low").glob(f"{language}_*"))[0]
        low, high = (files.read_mono(valid / part / path.name, SAMPLE_RATE) for part in ("low", "high"))
        size = int(SHOWN_SECONDS * SAMPLE_RATE)
        restored = restorer(low[:size], SAMPLE_RATE)
        save_sounds(root, language, {"input": low[:size], "restored": restored, "original": high[:size]}, SAMPLE_RATE)


DEMO = Demo(NAME, plan, measure, data=(DATA, WHISPER), redrawn=1)
CLAIMS = (
    *(
        Claim(NAME, f"{title}, no language of the training: LSD above the band's edge, to {other}",
              f"{language}: LSD-HF to {system}", EACH, 1.0)
        for language, title in LANGUAGES.items()
        for system, other in ((NOISE, "shaped noise"), (LINEAR, "linear interpolation"))
    ),
    Claim(NAME, "held-out English prompts: gain in WER on the input", WER_GAIN, EACH, at_least=0.0),
)  # fmt: skip
