"""Use an optimizer of your own in any recipe.

In this folder: zoo fit flow/smoke --allow-import own_optimizer --model.optimizer own_optimizer.Lion
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

import zoo


class Lion(torch.optim.Optimizer):
    """Step by the sign of a momentum.

    Args:
        params: parameters, or groups of them.
        lr: length of a step.
        betas: shares of the momentum in the step and in the next momentum.
        weight_decay: decoupled, as of AdamW.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; return the loss of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * momentum.lerp(parameter.grad, 1 - group["betas"][0]).sign())
                momentum.lerp_(parameter.grad, 1 - group["betas"][1])
        return loss


__getattr__, __dir__, __all__ = zoo.register(__name__, {"": "Lion"})
