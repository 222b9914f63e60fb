"""What a validation hears: a clip restored, beside the input as it is and what the frozen parts can reach."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.audio import metrics
from zoo.audiosr.restore import Restorer
from zoo.training.media import log_audio, log_figure, mel_figure
from zoo.training.task import ZooTask


def compare_restored(restorer: Restorer, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Restore the first clip of a batch.

    Args:
        restorer: at the batch's sample rate.
        batch: `high`, `low` (B, 1, T), `cutoff_hz` (B,).

    Returns:
        Signals (T,) on the CPU: `restored`, `input`, `target`, `ceiling`; and values: `lsd`, `lsd_hf` (above the
        cut-off), `lsd_lf`, the same of the input as `unprocessed_...` and of the ceiling as `ceiling_...`.
    """
    high, low = (batch[key][0, 0].float().cpu() for key in ("high", "low"))
    rate, cutoff_hz = restorer.sample_rate, float(batch["cutoff_hz"][0])
    signals = {
        "restored": torch.from_numpy(restorer(low.numpy(), rate, cutoff_hz=cutoff_hz)),
        "input": low,
        "target": high,
        "ceiling": torch.from_numpy(restorer.ceiling(low.numpy(), high.numpy(), rate, cutoff_hz)),
    }
    values: dict[str, float] = {}
    for name, prefix in {"restored": "", "input": "unprocessed_", "ceiling": "ceiling_"}.items():
        below, above = metrics.lsd_bands(signals[name], high, rate, cutoff_hz)
        values |= {f"{prefix}lsd": float(metrics.lsd(signals[name], high))}
        values |= {f"{prefix}lsd_lf": float(below), f"{prefix}lsd_hf": float(above)}
    return signals, values


def log_signals(task: ZooTask, name: str, signals: dict[str, Tensor], restorer: Restorer) -> None:
    """Keep the signals of `compare_restored` as sounds, and target and result as a picture."""
    for kind, audio in signals.items():
        log_audio(task, f"{name}_{kind}", audio, restorer.sample_rate)
    pair = torch.stack([signals["target"], signals["restored"]])[:, None].to(restorer.device)
    target, restored = restorer.features(pair)[:, 0].mT
    log_figure(task, f"{name}_mel", mel_figure(target, restored))
