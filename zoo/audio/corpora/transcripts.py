"""Texts compared as error rates: normalisation, and edit distances over words and characters."""

from __future__ import annotations

import unicodedata

from torchaudio.functional import edit_distance

_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_APOSTROPHES = "'\u2019\u02bc"  # join what they stand between, where other punctuation separates


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
