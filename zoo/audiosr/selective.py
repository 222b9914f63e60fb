"""Which parts of the denoiser train: the modes of the original's window, on real groups of modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from zoo.audiosr.denoiser import Denoiser
from zoo.training.freezing import freeze

Mode = Literal["full", "global_encoder", "unet_only"]
_ENCODER = "global_encoder"


def train_only(net: Denoiser, trains: Mode | Sequence[str]) -> dict[str, int]:
    """Freeze all groups of a denoiser but those that train; parts that are frozen as a whole go to evaluation mode.

    Args:
        net: in place.
        trains: "full": all of it; "global_encoder": the encoder alone; "unet_only": all but the encoder; or a list of
            names from `Denoiser.groups`.

    Returns:
        Number of weights in each group that trains.

    Raises:
        ValueError: when a mode or group is unknown, or this net has no such group.
    """
    groups = net.groups()
    if trains == "full":
        chosen = list(groups)
    elif trains == "global_encoder":
        chosen = [_ENCODER]
    elif trains == "unet_only":
        chosen = [name for name in groups if name != _ENCODER]
    elif isinstance(trains, str):
        raise ValueError(f"trains is one of {', '.join(get_args(Mode))}, or a list of groups; found {trains!r}")
    else:
        chosen = list(trains)
    unknown = [name for name in chosen if name not in groups]
    if unknown or not chosen:
        raise ValueError(f"trains: this net has the groups {', '.join(groups)}; found {', '.join(unknown) or 'none'}")
    parameters = dict(net.named_parameters())
    freeze(net, [name for group, names in groups.items() if group not in chosen for name in names])
    return {group: sum(parameters[name].numel() for name in groups[group]) for group in chosen}
