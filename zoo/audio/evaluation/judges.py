"""Models that score audio in an evaluation; each loads what the user gives, when it is first needed.

None of the public models was run here (there is no network): the tests use random models of the same classes and small
ONNX stand-ins with the same inputs and outputs.
"""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torchaudio.functional import edit_distance

from zoo.common.reading.pretrained_files import check_pretrained
from zoo.common.statistics import Measure

_LONGEST_SECONDS = 30.0  # longer audio is scored in equal parts: attention is quadratic, and models learned on clips

_PRIMARY, _P808 = "sig_bak_ovr.onnx", "model_v8.onnx"  # DNSMOS, as Microsoft publishes it
_DNSMOS_SECONDS = 9.01  # that the models take, moved by a second
_P808_HOP = 160  # samples between the frames of the P.808 model
# From the model's outputs to the scale of the listeners, highest power first; of the published evaluation script.
_SIG = (-0.08397278, 1.22083953, 0.0052439)
_BAK = (-0.13166888, 1.60915514, -0.39604546)
_OVR = (-0.06766283, 1.11546468, 0.04602535)
# NISQA's front end, of its published settings: mel magnitudes of 20 ms every 10 ms in dB, in overlapping segments.
_NISQA_FFT, _NISQA_WINDOW, _NISQA_HOP = 4096, 960, 480  # samples at 48 kHz
_NISQA_BANDS, _NISQA_LAST_HZ = 48, 20000.0
_NISQA_SEGMENT, _NISQA_STEP = 15, 4  # frames
_NISQA_LEAST, _NISQA_RANGE_DB = 1e-4, 80.0  # least magnitude; decibels below the loudest cell
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
FLAG_QUANTILE = 0.99  # of the clean recordings' segments: as far as a perfect restoration goes, once in a hundred
_APOSTROPHES = "'\u2019\u02bc"  # join what they stand between, where other punctuation separates


@dataclass(frozen=True)
class Judge(ABC):
    """Gives values to a recording. Fields are plain values; models are loaded by `load` and stay out of pickles.

    Attributes:
        sample_rate: of the audio it takes, in Hz.
        reference: which counterpart it compares a recording with.
    """

    sample_rate: ClassVar[int] = 16000
    reference: ClassVar[Literal["clean", "degraded"]] = "clean"  # what `clean` of a call is
    measures: ClassVar[tuple[Measure, ...]]

    @cached_property
    def _model(self) -> Any:
        """What scores, opened by the first use."""
        raise NotImplementedError(f"{type(self).__name__} has no model")

    def load(self) -> None:
        """Load the model unless it is loaded.

        Raises:
            OSError: the model is missing or cannot be read.
            ImportError: a package is missing.
        """
        _ = self._model

    @abstractmethod
    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, Any]:
        """Score one recording.

        Args:
            restored: audio (T,) float32 at `sample_rate`.
            clean: its clean counterpart (T',) float32, or None where the recording is itself the clean one.
            text: what is said, or None where that is unknown.

        Returns:
            Values by the names of `measures` and their weights; a missing one is undefined.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class SpeakerSimilarity(Judge):
    """Cosine of the speaker embeddings of restored and clean recording.

    Args:
        model: hub id or folder of a transformers x-vector model (WavLMForXVector, Wav2Vec2ForXVector, ...); or an ONNX
            file that maps waveforms (1, T), or log-mel filterbanks (1, F, 80) as the ECAPA models of wespeaker
            take them, to embeddings. A TorchScript file is refused: it is a program.
    """

    measures: ClassVar[tuple[Measure, ...]] = (Measure("speaker_similarity", True),)
    model: str
    revision: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        path = Path(self.model)
        if path.is_file() and path.suffix != ".onnx":
            raise ValueError(f"{path}: expected a folder of a transformers model or an .onnx file")

    @cached_property
    def _model(self) -> Any:
        if self.model.endswith(".onnx"):
            return onnx_session(Path(self.model))
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        model, settings = source(self.model, self.revision)
        extractor = AutoFeatureExtractor.from_pretrained(model, **settings)
        network = AutoModelForAudioXVector.from_pretrained(model, **settings)
        return extractor, network.eval().to(self.device)

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`; undefined without a clean recording."""
        if clean is None:
            return {}
        found, wanted = self._embedding(restored), self._embedding(clean)
        scale = float(np.linalg.norm(found) * np.linalg.norm(wanted))
        return {"speaker_similarity": float(found @ wanted) / scale if scale else math.nan}

    def _embedding(self, audio: np.ndarray) -> np.ndarray:
        embed = self._embed_onnx if self.model.endswith(".onnx") else self._embed
        parts = [embed(part).reshape(-1).astype(np.float64) for part in parts_of(audio, self.sample_rate)]
        return np.mean([part / max(float(np.linalg.norm(part)), 1e-12) for part in parts], axis=0)

    def _embed(self, audio: np.ndarray) -> np.ndarray:
        import torch

        extractor, network = self._model
        with torch.inference_mode():
            inputs = extractor(audio, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
            return network(**inputs).embeddings[0].float().cpu().numpy()

    def _embed_onnx(self, audio: np.ndarray) -> np.ndarray:
        takes_filterbanks = len(self._model.get_inputs()[0].shape) == 3
        return run_onnx(self._model, (_filterbank(audio, self.sample_rate) if takes_filterbanks else audio)[None])


@dataclass(frozen=True)
class InputDisagreement(Judge):
    """Cosine distance of the SSL features of a recording and of the degraded input it was made from, by segments.

    A restoration that invents what the input does not hold is far from it; so is one that removes much noise, which is
    why the report compares with the clean recordings' own distances.

    Args:
        model: hub id or folder of a transformers encoder of waveforms (HuBERT, WavLM, wav2vec 2.0).
        layer: block whose output is compared, from 1; None is the one at two thirds of the depth, where what is said
            counts more than how it sounds.
        flag_above: distance (0 to 2) above which a segment is flagged as a possible hallucination; None is the
            `FLAG_QUANTILE` of the clean recordings' segments.
    """

    reference = "degraded"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("disagreement", False),
        Measure("disagreement_worst", False),
    )
    model: str
    layer: int | None = None
    flag_above: float | None = None
    revision: str | None = None
    device: str = "cpu"
    segment_seconds: float = 1.0

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoFeatureExtractor, AutoModel

        model, settings = source(self.model, self.revision)
        extractor = AutoFeatureExtractor.from_pretrained(model, **settings)
        network = AutoModel.from_pretrained(model, **settings)
        depth = network.config.num_hidden_layers
        if self.layer is not None and not 1 <= self.layer <= depth:
            raise OSError(f"{self.model} has blocks 1 to {depth}, not {self.layer}")
        return extractor, network.eval().to(self.device)

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, Any]:
        """See `Judge.__call__`, with the degraded input as `clean`; `segments` has each segment's distance as text."""
        if clean is None:
            return {}
        samples = max(min(len(restored), len(clean)), self.sample_rate // 10)
        pair = [np.pad(audio[:samples], (0, max(0, samples - len(audio)))) for audio in (restored, clean)]
        found, wanted = (self._features(audio) for audio in pair)
        frames = max(1, round(self.segment_seconds * self.sample_rate * len(found) / samples))
        segments = by_segments(cosine_distances(found, wanted), frames)
        return {
            "disagreement": float(segments.mean()),
            "disagreement_worst": float(segments.max()),
            "segments": " ".join(f"{value:.5f}" for value in segments),
        }

    def _features(self, audio: np.ndarray) -> np.ndarray:
        import torch

        extractor, network = self._model
        layer = self.layer or max(1, round(network.config.num_hidden_layers * 2 / 3))
        features = []
        for part in parts_of(audio, self.sample_rate):
            inputs = extractor(part, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
            with torch.inference_mode():
                features.append(network(**inputs, output_hidden_states=True).hidden_states[layer][0].float().cpu())
        return torch.cat(features).numpy()


def source(model: str, revision: str | None = None) -> tuple[str, dict[str, Any]]:
    """The checked hub id or folder of a model of transformers, and the other arguments of its `from_pretrained`.

    Raises:
        FileNotFoundError: for a path at which there is no folder.
        ValueError: when its files would make transformers download or run code.
    """
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise FileNotFoundError(f"{model}: no such folder of a transformers model")
    check_pretrained(model, revision)
    return model, {"revision": revision, "trust_remote_code": False}


def cosine_distances(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """1 - cosine (F,) of features (F, C), frame by frame; 0 where both are zero, 1 where one is."""
    scale = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    silent = ~(found.any(1) | wanted.any(1))
    return 1.0 - np.where(silent, 1.0, (found * wanted).sum(1) / np.maximum(scale, 1e-12))


def by_segments(values: np.ndarray, frames: int) -> np.ndarray:
    """Means of so many values (F,) each; a last segment shorter than half one joins the segment before."""
    count = max(1, math.floor(len(values) / frames + 0.5))
    return np.array([part.mean() for part in np.split(values, [frames * i for i in range(1, count)])])


@dataclass(frozen=True)
class MOSPredictor(Judge):
    """A predicted mean opinion score: UTMOS and its like, as an ONNX file.

    Args:
        model: ONNX file that maps waveforms (1, T) float32 at 16 kHz to one number.
    """

    measures: ClassVar[tuple[Measure, ...]] = (Measure("mos", True),)
    model: Path

    @cached_property
    def _model(self) -> Any:
        return onnx_session(self.model)

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`."""
        scores = [float(run_onnx(self._model, part[None]).mean()) for part in parts_of(restored, self.sample_rate)]
        return {"mos": float(np.mean(scores))}


@dataclass(frozen=True)
class DNSMOS(Judge):
    """P.835 scores of speech, background and overall quality, and the P.808 score, each about 1 to 5.

    Not run on the published files here; tested with stand-ins of the same inputs and outputs.

    Args:
        folder: holds `sig_bak_ovr.onnx`, and `model_v8.onnx` for the P.808 score (undefined without it).

    Source: Reddy et al., "DNSMOS P.835" (2022); windows, polynomials and mel input of the published evaluation script.
    """

    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("dnsmos_sig", True),
        Measure("dnsmos_bak", True),
        Measure("dnsmos_ovr", True),
        Measure("dnsmos_p808", True),
    )
    folder: Path

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        p808 = Path(self.folder) / _P808
        return onnx_session(Path(self.folder) / _PRIMARY), onnx_session(p808) if p808.exists() else None

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`: means over windows; a short recording is repeated until it fills one."""
        if not len(restored):
            return {}
        windows = _windows(restored, self.sample_rate)
        primary, p808 = self._model
        raw = np.array([run_onnx(primary, window[None]).reshape(-1)[:3] for window in windows])
        values = {
            f"dnsmos_{name}": float(np.polyval(curve, raw[:, index]).mean())
            for index, (name, curve) in enumerate((("sig", _SIG), ("bak", _BAK), ("ovr", _OVR)))
        }
        if p808 is not None:
            scores = [float(run_onnx(p808, _mel(window)[None]).mean()) for window in windows]
            values["dnsmos_p808"] = float(np.mean(scores))
        return values


@dataclass(frozen=True)
class NISQA(Judge):
    """Quality, and noisiness, discontinuity, coloration and loudness apart, each 1 to 5; higher is better.

    Not run on the published weights here (CC BY-NC-SA 4.0: for non-commercial use; a checkpoint of torch that the user
    exports); tested with a stand-in of the same inputs and outputs.

    Args:
        model: ONNX file that maps the segments (1, S, 1, 48, 15) of a recording, and their number (1,) int64 where it
            has a second input, to (1, 5): quality, noisiness, discontinuity, coloration, loudness.

    Source: Mittag et al., "NISQA" (2021), sections 3.1 and 3.2; sizes and order of the published code's settings.
    """

    sample_rate = 48000
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("nisqa_mos", True),
        Measure("nisqa_noisiness", True),
        Measure("nisqa_discontinuity", True),
        Measure("nisqa_coloration", True),
        Measure("nisqa_loudness", True),
    )
    model: Path

    @cached_property
    def _model(self) -> Any:
        return onnx_session(self.model)

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`: means over parts of a long recording; undefined for less than a segment, 0.14 s."""
        parts = [nisqa_segments(part) for part in parts_of(restored, self.sample_rate)]
        if not all(map(len, parts)):
            return {}
        scores = np.array([self._scores(segments) for segments in parts]).mean(0)
        return {measure.name: float(score) for measure, score in zip(self.measures, scores, strict=True)}

    def _scores(self, segments: np.ndarray) -> np.ndarray:
        """Scores (5,) of the segments (S, 1, 48, 15) of a part."""
        count = [np.array([len(segments)])] if len(self._model.get_inputs()) > 1 else []
        scores = run_onnx(self._model, segments[None], *count).reshape(-1)
        if len(scores) != len(self.measures):
            raise ValueError(f"{self.model}: expected {len(self.measures)} scores of a recording, found {len(scores)}")
        return scores


def nisqa_segments(audio: np.ndarray) -> np.ndarray:
    """NISQA's segments (S, 1, 48, 15) of mel magnitudes in dB of audio (T,) at 48 kHz; none of less than 0.14 s."""
    import torch

    bands = np.zeros((_NISQA_BANDS, 0), np.float32)  # where reflection has nothing to reflect
    if len(audio) > _NISQA_FFT // 2:
        with torch.no_grad():
            magnitude = _nisqa_mel()(torch.from_numpy(np.ascontiguousarray(audio, dtype=np.float32)))  # (48, F)
        decibels = 20 * magnitude.clamp(min=_NISQA_LEAST).log10()
        bands = decibels.clamp(min=decibels.max() - _NISQA_RANGE_DB).numpy()
    starts = range(0, bands.shape[1] - _NISQA_SEGMENT + 1, _NISQA_STEP)
    segments = [bands[:, start : start + _NISQA_SEGMENT] for start in starts]
    return np.array(segments, np.float32).reshape(-1, 1, _NISQA_BANDS, _NISQA_SEGMENT)


@lru_cache(maxsize=1)
def _nisqa_mel() -> Any:
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(
        NISQA.sample_rate, n_fft=_NISQA_FFT, win_length=_NISQA_WINDOW, hop_length=_NISQA_HOP, f_max=_NISQA_LAST_HZ,
        n_mels=_NISQA_BANDS, power=1.0, norm="slaney", mel_scale="slaney",
    )  # fmt: skip


@dataclass(frozen=True)
class ASR(Judge):
    """Word and character error rate of a recogniser's transcript against the reference text.

    Case, punctuation and forms of width are taken out first. Texts in scripts without spaces have no word error rate.

    Args:
        model: hub id or folder of a transformers recogniser, CTC or sequence-to-sequence.
        language: for recognisers of several languages, e.g. "en"; None leaves it to the model.
    """

    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("wer", False, weight="words"),
        Measure("cer", False, weight="characters"),
    )
    model: str
    revision: str | None = None
    language: str | None = None
    device: str = "cpu"

    @cached_property
    def _model(self) -> Any:
        from transformers import pipeline

        model, settings = source(self.model, self.revision)
        return pipeline("automatic-speech-recognition", model, device=self.device, **settings)

    def transcribe(self, audio: np.ndarray) -> str:
        """The transcript of audio (T,) float32 at 16 kHz."""
        options: dict[str, Any] = {"generate_kwargs": {"language": self.language}} if self.language else {}
        parts = parts_of(audio, self.sample_rate)
        hypothesis = [self._model({"raw": part, "sampling_rate": self.sample_rate}, **options) for part in parts]
        text = " ".join(part["text"] for part in hypothesis)
        for token in self._model.tokenizer.all_special_tokens:  # CTC recognisers leave theirs in
            text = text.replace(token, "")
        return text

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`; undefined without a text."""
        wanted = normalise(text or "")
        if not wanted:
            return {}
        hypothesis = normalise(self.transcribe(restored))
        (word_edits, words), (character_edits, characters) = (
            word_errors(hypothesis, wanted),
            character_errors(hypothesis, wanted),
        )
        values = {"cer": character_edits / characters, "characters": float(characters)}
        return values | ({"wer": word_edits / words, "words": float(words)} if words else {})


def normalise(text: str) -> str:
    """Bring a text to lower case in NFKC form, without punctuation and symbols, with single spaces."""
    folded = unicodedata.normalize("NFKC", text).lower()
    kept = "".join(
        "" if c in _APOSTROPHES else " " if unicodedata.category(c)[0] in "PSCZ" else c
        for c in unicodedata.normalize("NFKC", folded)
    )
    return " ".join(kept.split())


def has_words(text: str) -> bool:
    """Whether a text is in a script that sets spaces between words: most of its letters are."""
    letters = [c for c in text if c.isalpha()]
    unspaced = sum(unicodedata.name(c, "").startswith(_WITHOUT_SPACES) for c in letters)
    return 2 * unspaced < len(letters) or not letters


def word_errors(hypothesis: str, reference: str) -> tuple[int, int]:
    """Edits from a hypothesis to its reference and the number of reference words; (0, 0) in scripts without spaces."""
    if not has_words(reference):
        return 0, 0
    return edit_distance(hypothesis.split(), reference.split()), len(reference.split())


def character_errors(hypothesis: str, reference: str) -> tuple[int, int]:
    """Edits from a hypothesis to its reference and the reference's characters; spaces count only between words."""
    if not has_words(reference):
        hypothesis, reference = hypothesis.replace(" ", ""), reference.replace(" ", "")
    return edit_distance(hypothesis, reference), len(reference)


def parts_of(audio: np.ndarray, sample_rate: int) -> Sequence[np.ndarray]:
    """Equal parts (n,) of at most 30 s of audio (T,)."""
    return np.array_split(audio, max(1, math.ceil(len(audio) / (_LONGEST_SECONDS * sample_rate))))


def onnx_session(path: Path) -> Any:
    """Open an ONNX file on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no ONNX model.
        ImportError: onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"{path}: ONNX models need the extra `export`: pip install 'zoo[export]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such ONNX file")
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _onnx_errors() as error:
        raise ValueError(f"{path}: no ONNX model that onnxruntime can run ({error})") from error


def run_onnx(session: Any, value: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Run a model on a float32 array, and on others as they are for its further inputs, and return its first output.

    Raises:
        ValueError: the model does not take an array of this shape, or so many inputs.
    """
    wanted, *further = session.get_inputs()
    if len(further) != len(others):
        raise ValueError(f"the ONNX model takes {1 + len(further)} inputs, expected {1 + len(others)}")
    given = {each.name: other for each, other in zip(further, others, strict=True)}
    try:
        return np.asarray(session.run(None, {wanted.name: np.ascontiguousarray(value, dtype=np.float32), **given})[0])
    except _onnx_errors() as error:
        raise ValueError(f"the ONNX model takes {wanted.shape}, got {value.shape} ({error})") from error


def _onnx_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: each is a direct child of Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf, state.RuntimeException


def _filterbank(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Kaldi's log-mel filterbank (F, 80) of 25 ms frames every 10 ms, less its mean over time."""
    import torch
    from torchaudio.compliance import kaldi

    waveform = torch.from_numpy(np.ascontiguousarray(audio))[None] * 2.0**15  # Kaldi counts in 16-bit steps
    bank = kaldi.fbank(waveform, num_mel_bins=80, sample_frequency=sample_rate, window_type="hamming")
    return (bank - bank.mean(0)).numpy()


def _windows(audio: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Windows (144160,) at starts a second apart, as many as the published script takes."""
    size = int(_DNSMOS_SECONDS * sample_rate)
    while len(audio) < size:
        audio = np.concatenate([audio, audio])
    count = int(len(audio) // sample_rate - _DNSMOS_SECONDS) + 1
    return [audio[i * sample_rate : i * sample_rate + size] for i in range(max(1, count))]


@lru_cache(maxsize=1)
def _mel_power() -> Any:
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(
        16000, n_fft=321, hop_length=_P808_HOP, n_mels=120, norm="slaney", mel_scale="slaney", pad_mode="constant"
    )


def _mel(window: np.ndarray) -> np.ndarray:
    """Mel power (900, 120) in dB below the loudest cell, scaled to [-1, 1], as the P.808 model takes it."""
    import torch

    with torch.no_grad():
        power = _mel_power()(torch.from_numpy(np.ascontiguousarray(window[:-_P808_HOP]))).clamp(min=1e-10)
    decibels = 10 * torch.log10(power)
    decibels = (decibels - decibels.max()).clamp(min=-80.0)
    return ((decibels + 40) / 40).T.numpy()
