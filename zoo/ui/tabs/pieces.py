"""What the tabs share: headings, states, answers in one line."""

from __future__ import annotations

from nicegui import ui

STATE_WORDS = {
    "running": ("good", "running"),
    "stopping": ("busy", "stopping"),
    "active": ("good", "running elsewhere"),
    "queued": ("busy", "queued"),
    "waiting": ("busy", "waiting"),
    "finished": ("calm", "finished"),
    "stopped": ("calm", "stopped"),
    "failed": ("bad", "failed"),
    "ended": ("calm", "ended"),
    "idle": ("calm", "not running"),
    "killed": ("bad", "killed"),
    "corrupt": ("bad", "newest checkpoint corrupt"),
    "empty": ("calm", "nothing trained"),
}


def heading(text: str, level: int = 2) -> ui.html:
    """A heading of the page's outline; the header has the first level."""
    return ui.html(text, sanitize=False, tag=f"h{level}").classes("zoo-title")


class Answer(ui.label):
    """A coloured line that a screen reader announces when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.classes("zoo-said").props('role="status" aria-live="polite"')
        self.set_visibility(False)

    def say(self, kind: str, text: str) -> None:
        """Show a text: kind "good", "busy", "calm" or "bad"."""
        self.classes(remove="good busy calm bad").classes(kind)  # what hides it is a class, too
        self.set_text(text)
        self.set_visibility(bool(text))
