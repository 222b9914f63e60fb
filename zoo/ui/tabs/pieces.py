"""What the tabs share: coloured lines, headings, errors as notices."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr


def said(kind: str, text: str) -> str:
    """A coloured line: kind "good", "busy" or "bad"."""
    return f'<div class="zoo-said {kind}">{escape(text)}</div>'


def title(text: str) -> str:
    """A small heading."""
    return f'<div class="zoo-title">{escape(text)}</div>'


def one_line(function: Callable[[], Any]) -> Any:
    """Call; what a user can mend becomes a notice on the page."""
    try:
        return function()
    except (ValueError, OSError) as error:
        raise gr.Error(" ".join(str(error).split()), print_exception=False) from error
