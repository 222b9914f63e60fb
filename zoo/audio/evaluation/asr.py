"""Word and character error rates of a speech recogniser."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from torchaudio.functional import edit_distance

from zoo.audio.evaluation.models import MetricModel, resolve_model, split_audio
from zoo.audio.evaluation.summary import MetricColumn

_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_APOSTROPHES = "'\u2019\u02bc"  # join what they stand between, where other punctuation separates


@dataclass(frozen=True)
class ASR(MetricModel):
    """Word and character error rate of a recogniser's transcript against the reference text.

    Case, punctuation and forms of width are removed first. Texts in scripts without spaces have no word error rate.

    Args:
        model: hub id or folder of a transformers recogniser, CTC or sequence-to-sequence.
        language: for recognisers of several languages, e.g. "en"; None leaves it to the model.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (
        MetricColumn("wer", False, weight="words"),
        MetricColumn("cer", False, weight="characters"),
    )
    model: str
    language: str | None = None
    device: str = "cpu"

    @cached_property
    def _model(self) -> Any:
        from transformers import pipeline

        model, settings = resolve_model(self.model)
        return pipeline("automatic-speech-recognition", model, device=self.device, **settings)

    def transcribe(self, audio: np.ndarray) -> str:
        """Transcribe audio (T,) float32 at 16 kHz."""
        options: dict[str, Any] = {"generate_kwargs": {"language": self.language}} if self.language else {}
        segments = split_audio(audio, self.sample_rate)
        results = [self._model({"raw": part, "sampling_rate": self.sample_rate}, **options) for part in segments]
        text = " ".join(result["text"] for result in results)
        for token in self._model.tokenizer.all_special_tokens:  # CTC recognisers leave theirs in
            text = text.replace(token, "")
        return text

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Score the transcript; undefined without a text."""
        return error_rates(self.transcribe(restored), text) if text and normalize_text(text) else {}


def error_rates(hypothesis: str, reference: str) -> dict[str, float]:
    """Compute character error rate and, in scripts with spaces, word error rate, with the counts of the reference."""
    hypothesis, reference = normalize_text(hypothesis), normalize_text(reference)
    words = reference.split()
    if not has_words(reference):
        hypothesis, reference, words = hypothesis.replace(" ", ""), reference.replace(" ", ""), []
    values = {"cer": edit_distance(hypothesis, reference) / len(reference), "characters": float(len(reference))}
    if words:
        values |= {"wer": edit_distance(hypothesis.split(), words) / len(words), "words": float(len(words))}
    return values


def normalize_text(text: str) -> str:
    """Bring a text to lower case in NFKC form, without punctuation and symbols, with single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    letters = ("" if c in _APOSTROPHES else " " if unicodedata.category(c)[0] in "PSCZ" else c for c in folded)
    return " ".join("".join(letters).split())


def has_words(text: str) -> bool:
    """Whether a text is in a script that sets spaces between words: most of its letters are."""
    letters = [c for c in text if c.isalpha()]
    unspaced = sum(unicodedata.name(c, "").startswith(_SCRIPTS_WITHOUT_SPACES) for c in letters)
    return 2 * unspaced < len(letters) or not letters
