"""Texts compared as error rates: normalisation, and edit distances over words and characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_APOSTROPHES = "'\u2019\u02bc"  # join what they stand between, where other punctuation separates


def normalise(text: str) -> str:
    """Bring a text to lower case in NFKC form, without punctuation and symbols, with single spaces.

    Returns:
        Letters, marks, digits and single spaces.
    """
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


def word_errors(heard: str, wanted: str) -> tuple[int, int]:
    """Edits from a heard to a wanted text and the number of wanted words; (0, 0) in scripts without spaces."""
    return (edits(heard.split(), wanted.split()), len(wanted.split())) if has_words(wanted) else (0, 0)


def character_errors(heard: str, wanted: str) -> tuple[int, int]:
    """Edits from a heard to a wanted text and the number of wanted characters; spaces count only between words."""
    if not has_words(wanted):
        heard, wanted = heard.replace(" ", ""), wanted.replace(" ", "")
    return edits(heard, wanted), len(wanted)


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Levenshtein distance: least number of insertions, deletions and replacements."""
    above = list(range(len(wanted) + 1))
    for i, item in enumerate(found, start=1):
        row = [i]
        for j, other in enumerate(wanted, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (item != other)))
        above = row
    return above[-1]
