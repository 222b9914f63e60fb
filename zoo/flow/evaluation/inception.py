"""The Inception net of the assignment's Fréchet distance, trained on AFHQ; its weights come from the user.

The weights' licence is CC BY-NC 4.0, so no copy is shipped. Neither the weights nor torchvision were at hand here: the
order of the layers was tested on a stand-in, figures of the real net were not made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.common.safe_load import load_foreign_checkpoint, to_plain_values
from zoo.flow.evaluation.extractors import Classifier, resized, with_channels

RESOLUTION = 256  # pixels, that the net was trained at; not Inception's 299
DIMS = 2048
# torchvision's names in the order of the weights file: block2.1 is Conv2d_4a_3x3
BLOCKS: dict[str, tuple[str, ...]] = {
    "block1": ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "maxpool1"),
    "block2": ("Conv2d_3b_1x1", "Conv2d_4a_3x3", "maxpool2"),
    "block3": ("Mixed_5b", "Mixed_5c", "Mixed_5d", "Mixed_6a", "Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"),
    "block4": ("Mixed_7a", "Mixed_7b", "Mixed_7c", "avgpool"),
}
UNUSED = ("AuxLogits", "dropout", "fc")
"""Of torchvision's net: the side classifier, and what follows the features."""


class AFHQInception(Classifier):
    """Inception-v3 in the blocks of the assignment, with its classifier of cats, dogs and wild animals.

    Args:
        trunk: torchvision's `inception_v3`, or a module with children of the same names.
        dims: channels that the trunk's last block gives.
    """

    def __init__(self, trunk: nn.Module, num_classes: int = 3, dims: int = DIMS) -> None:
        super().__init__()
        self.dims = dims
        self.num_classes = num_classes
        layers = dict(trunk.named_children())
        missing = [name for names in BLOCKS.values() for name in names if name not in layers]
        if missing:
            raise ValueError(f"{type(trunk).__name__} is no torchvision Inception-v3: it has no {', '.join(missing)}")
        for block, names in BLOCKS.items():
            self.add_module(block, nn.Sequential(*(layers[name] for name in names)))
        self.final_fc = nn.Linear(dims, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 2048) of images (B, C, H, W), float in [-1, 1]; resized to 256 x 256, grey is repeated."""
        x = with_channels(resized(images, RESOLUTION), 3)
        for block in BLOCKS:
            x = self.get_submodule(block)(x)
        return x.flatten(1)

    def logits(self, features: Tensor) -> Tensor:
        """Scores (B, K) of features (B, 2048); cat, dog, wild."""
        return self.final_fc(features)


def load_inception(path: Path) -> AFHQInception:
    """Build the net from torchvision, in evaluation mode on the CPU, with the user's weights; not run here."""
    state = read_weights(path)
    try:
        from torchvision.models import inception_v3
    except ImportError as error:
        raise ImportError("the AFHQ Inception needs torchvision: pip install zoo[images]") from error
    net = AFHQInception(inception_v3(weights=None, aux_logits=False, init_weights=False), len(state["final_fc.bias"]))
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        causes = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit torchvision's Inception-v3: {causes[:300]}") from error
    return net.eval().requires_grad_(False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by the names of `AFHQInception` from a torch or safetensors file, of which nothing is executed.

    They stand at the top or under `state_dict`; a prefix `module.` of all names is dropped.
    """
    content: Any = to_plain_values(load_foreign_checkpoint(path))
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected tensors by name, found {type(content).__name__}")
    state = {str(key).removeprefix("module."): value for key, value in content.items() if isinstance(value, Tensor)}
    found = {_layer(key) for key in state}
    expected = {"final_fc"} | {
        f"{block}.{index}" for block, names in BLOCKS.items() for index, name in enumerate(names) if "pool" not in name
    }
    if found != expected:
        missing, unknown = sorted(expected - found), sorted(found - expected)
        raise ValueError(
            f"{path} is no weights file of the AFHQ Inception: missing {', '.join(missing) or 'nothing'}, unknown "
            f"{', '.join(unknown[:8]) or 'nothing'}; expected block1.0, ..., block4.2 and final_fc"
        )
    return state


def _layer(key: str) -> str:
    """`block3.0.branch1x1.conv.weight` -> `block3.0`, `final_fc.bias` -> `final_fc`."""
    first, _, rest = key.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in BLOCKS else first
