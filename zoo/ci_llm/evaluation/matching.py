"""Whether a text is the right answer: literally, normalised, or as lm-eval reads GSM8K."""

from __future__ import annotations

import re
import string
import unicodedata

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
INVALID = "[invalid]"
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """A text in lower case and one Unicode form, without punctuation, English articles and further white space.

    Source: Rajpurkar et al., "SQuAD" (arXiv 1606.05250), section 6, with Unicode's NFKC before.
    """
    plain = unicodedata.normalize("NFKC", text).lower()
    plain = "".join(letter for letter in plain if letter not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def text_figures(text: str, gold: str) -> dict[str, float]:
    """`exact` (but for white space around) and `normalised` match, as 0 or 1."""
    return {
        "exact": float(text.strip() == gold.strip()),
        "normalised": float(normalised(text) == normalised(gold)),
    }


def strict_match(text: str) -> str:
    """The first number behind `#### `, as it stands there."""
    found = _STRICT.search(text)
    return found[1].strip() if found else INVALID


def flexible_extract(text: str) -> str:
    """The last thing that looks like a number, as it stands there."""
    found = _FLEXIBLE.findall(text)
    return next((part.strip() for part in found[-1] if part), INVALID) if found else INVALID


def gsm8k_figures(text: str, gold: str) -> dict[str, float]:
    """`strict-match` and `flexible-extract` as 0 or 1.

    Source: task `gsm8k` 3.0 of lm-eval 0.4.13, its regular expressions and what its exact match ignores.
    """
    return {
        "strict-match": float(_bare(strict_match(text)) == _bare(gold)),
        "flexible-extract": float(_bare(flexible_extract(text)) == _bare(gold)),
    }


def _bare(text: str) -> str:
    for pattern in _IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
