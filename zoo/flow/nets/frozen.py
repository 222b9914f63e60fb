"""A trained net of flow matching that a later stage uses and does not train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo.runs import components


class FrozenNet(components.FrozenNet):
    """The net of a run, with averaged weights where it has them; called as that net is.

    `config` has `class_path` and `init_args` of the net.
    """

    net_base = net_class = "zoo.flow.VelocityNet"
    inference = "zoo.flow.Sampler"
    component = "net"

    @classmethod
    def describe_net(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config itself."""
        return dict(config)

    def forward(self, *inputs: Any) -> Tensor:
        """Predict, see `VelocityNet.forward`."""
        return self.net(*inputs)
