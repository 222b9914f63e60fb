"""What the page shows as HTML of its own: curves, load, sounds and pictures. Everything foreign is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from zoo.runs.listing import Points
from zoo.ui.readings import GIB, MEDIA_TYPES, Load, thinned

COLOURS = ("#0d9488", "#e8590c", "#4263eb", "#c2255c", "#7c8b00", "#9c36b5", "#0b7285", "#846358")
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 30
STATE_WORDS = {
    "running": ("good", "running"),
    "stopping": ("busy", "saving, then stopping"),
    "active": ("good", "running, started elsewhere"),
    "finished": ("calm", "finished"),
    "stopped": ("calm", "stopped"),
    "failed": ("bad", "failed"),
    "ended": ("calm", "ended"),
    "idle": ("calm", "not running"),
}


def curves(series: Mapping[str, Points], log_scale: bool = False, smooth: float = 0.0, width: int = WIDTH) -> str:
    """Draw curves against batches as SVG.

    Args:
        log_scale: logarithmic values; those that are not positive are left out.
        smooth: weight of the past in an exponential mean, 0 (off) to below 1.
        width: of the picture, in units of its text's size.

    Returns:
        HTML with the picture and a legend that holds the last values.
    """
    shown = {name: _prepared(points, log_scale, smooth) for name, points in series.items()}
    shown = {name: points for name, points in shown.items() if points}
    if not shown:
        return '<div class="zoo-empty">No values yet</div>'
    low_x, high_x = _range([x for points in shown.values() for x, _ in points], 0.0)
    low_y, high_y = _range([y for points in shown.values() for _, y in points], 0.06)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low_x) / (high_x - low_x) * (width - LEFT - RIGHT)
        return across, TOP + (high_y - y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="zoo-chart" viewBox="0 0 {width} {HEIGHT}" role="img" data-last-step="{high_x:.0f}">']
    for value in _ticks(low_y, high_y):
        y = place(low_x, value)[1]
        text = _short(10**value if log_scale else value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value in _ticks(low_x, high_x):
        x = place(value, low_y)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_short(value)}</text>')
    legend = []
    for index, (name, points) in enumerate(shown.items()):
        colour = COLOURS[index % len(COLOURS)]
        placed = [place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        for (x, y), (step, value) in list(zip(placed, points, strict=True))[:: max(1, len(placed) // 80)]:
            label = f"{escape(name)}: {_short(10**value if log_scale else value)} at batch {step:.0f}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{label}</title></circle>')
        last = series[name][-1][1]
        legend.append(f'<span><i style="background:{colour}"></i>{escape(name)} <b>{_short(last)}</b></span>')
    parts.append("</svg>")
    return f'<div class="zoo-card">{"".join(parts)}<div class="zoo-legend">{"".join(legend)}</div></div>'


def load_bar(loads: Sequence[Load]) -> str:
    """Small bars of the machine's load."""
    parts = []
    for load in loads:
        share = 100 * load.used_bytes / max(load.total_bytes, 1)
        memory = f"{load.used_bytes / GIB:.1f} of {load.total_bytes / GIB:.1f} GiB"
        parts.append(_meter(load.name, load.percent, f"{load.percent:.0f} %") + _meter("memory", share, memory))
    return f'<div class="zoo-load">{"".join(parts)}</div>'


def _meter(name: str, percent: float, text: str) -> str:
    return (
        f'<div class="zoo-meter"><span>{escape(name)}</span><b>{text}</b>'
        f'<div><i style="width:{min(max(percent, 0), 100):.0f}%"></i></div></div>'
    )


def status(run: str, state: str, facts: Sequence[tuple[str, str]]) -> str:
    """A run's state as a coloured word with some facts beside it."""
    kind, word = STATE_WORDS.get(state, ("calm", state))
    shown = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in facts)
    return (
        f'<div class="zoo-status" data-state="{escape(state)}"><em class="{kind}">{word}</em>'
        f"<code>{escape(run)}</code>{shown}</div>"
    )


def media(address: str, step: str, names: Sequence[str]) -> str:
    """Sounds and pictures as cards.

    Args:
        address: of the folder on this server, ending in a slash.
        step: of the moment, as in a media folder's name; "" for none.
        names: of the files, all with a suffix of `MEDIA_TYPES`.
    """
    if not names:
        return '<div class="zoo-empty">No sounds or pictures yet: they come with a validation</div>'
    cards = []
    for name in sorted(names, key=lambda name: (not _is_sound(name), name)):
        source = f"{escape(address)}{escape(name)}"
        if _is_sound(name):
            shown = f'<audio controls preload="none" src="{source}"></audio>'
        else:
            shown = f'<a href="{source}" target="_blank"><img loading="lazy" src="{source}" alt="{escape(name)}"></a>'
        cards.append(f'<figure class="zoo-card">{shown}<figcaption>{escape(Path(name).stem)}</figcaption></figure>')
    title = f"<p>after batch {escape(step.removeprefix('step_').lstrip('0') or '0')}</p>" if step else ""
    return f'{title}<div class="zoo-media">{"".join(cards)}</div>'


def _is_sound(name: str) -> bool:
    return MEDIA_TYPES[Path(name).suffix.lower()].startswith("audio/")


def downloads(address: str, names: Sequence[str]) -> str:
    """Links that save files."""
    links = [f'<a download href="{escape(address)}{escape(name)}">{escape(name)}</a>' for name in names]
    return f'<div class="zoo-links">{"".join(links)}</div>' if links else ""


def _prepared(points: Points, log_scale: bool, smooth: float) -> Points:
    smoothed, mean = [], None
    for x, y in points:
        mean = y if mean is None else smooth * mean + (1 - smooth) * y
        if not log_scale or mean > 0:
            smoothed.append((x, math.log10(mean) if log_scale else mean))
    return thinned(smoothed)


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        return low - pad * (margin > 0), high + pad
    return low - margin * (high - low), high + margin * (high - low)


def _ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round values between two ends."""
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.4g}"
