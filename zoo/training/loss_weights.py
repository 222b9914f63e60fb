"""Which loss weights an adversarial task needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def check_loss_weights(weights: Mapping[str, float], names: Sequence[str], discriminator_start: int) -> list[str]:
    """Check the weights that the discriminators need.

    Args:
        weights: weight by term.
        names: of the discriminators; each needs `d/<name>`, `g/adv_<name>` and `g/fm_<name>`.
        discriminator_start: number of batches trained without adversarial terms.

    Returns:
        The other keys, those of reconstruction terms; the first batch shows whether the task knows them.

    Raises:
        ValueError: naming the key that is missing or unknown.
    """
    known = [f"{prefix}{name}" for prefix in ("d/", "g/adv_", "g/fm_") for name in names]
    for key in known:
        if key not in weights:
            raise ValueError(f"loss_weights lacks {key!r}; give 0 to leave the term out")
    others = [key for key in weights if key not in known]
    for key in others:
        if key.startswith(("g/adv_", "g/fm_")) or not key.startswith("g/"):
            raise ValueError(f"loss_weights: unknown term {key!r}; the discriminators are {list(names)}")
    usable = [
        key for key in weights if key.startswith("g/") and weights[key] and (key in others or not discriminator_start)
    ]
    if not usable:
        raise ValueError("loss_weights: no term of the generator has a weight before batch discriminator_start")
    return others
