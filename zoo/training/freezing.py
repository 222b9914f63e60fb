"""Freezing parts of a module by the names of their parameters, for good or until a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from zoo.common.ranges import at_least


def freeze(module: nn.Module, groups: Sequence[str]) -> dict[str, int]:
    """Take parameters out of training and put modules that are frozen as a whole in eval mode.

    Args:
        module: whose parameters are frozen, in place.
        groups: each a prefix of parameter names ending at a dot (`encoder` means `encoder.*`, not `encoder2.*`), a
            whole name, or a glob (`blocks.[0-3].*`, `*.bias`).

    Returns:
        Number of weights (tensor elements) that each group names, in the groups' order.

    Raises:
        ValueError: when a group names no parameter.
    """
    counts = {}
    parameters = dict(module.named_parameters())
    for group in groups:
        names = [group] if group in parameters else [name for name in parameters if _matches(name, group)]
        matched = [parameters[name] for name in names]
        if not matched:
            known = ", ".join(dict.fromkeys(name.split(".")[0] for name in parameters))
            raise ValueError(
                f"freeze: group {group!r} matches no parameter of {type(module).__name__}; names begin with: {known}"
            )
        for parameter in matched:
            parameter.requires_grad_(False)
        counts[group] = sum(parameter.numel() for parameter in matched)
    _rest(module)
    return counts


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that train, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _matches(name: str, group: str) -> bool:
    return name.startswith(f"{group}.") or fnmatchcase(name, group)


def _rest(module: nn.Module) -> None:
    """Put the topmost modules without a trainable parameter in eval: no dropout, no running statistics."""
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        module.eval()
        return
    for child in module.children():
        _rest(child)


class Unfreezing:
    """Parts that begin to train at a step.

    Their parameters are trained ones from the start: the optimizer has them, EMA averages them and DDP reduces their
    gradients, which are thrown away until then. So state dicts have the same form on both sides of the step, and what a
    step does follows from its number alone: a resume on either side needs nothing more. (Adding them to the optimizer
    later would change its groups, which a checkpoint of the other side does not fit; DDP knows no parameter that did
    not train when it was set up.) Without a gradient an optimizer neither moves a parameter, decays it, nor begins
    its state. What it costs until then is their backward pass.

    Args:
        groups: names of parameters by group.
        steps: optimizer steps before which a group rests, by group.

    Raises:
        ValueError: an unknown group, one that does not train at all, or all of those that train rest at first.
    """

    def __init__(self, module: nn.Module, groups: Mapping[str, Sequence[str]], steps: Mapping[str, int]) -> None:
        trained = trainable_parameters(module)
        known = [group for group, names in groups.items() if trained.keys() & set(names)]
        for group, step in steps.items():
            if group not in known:
                raise ValueError(f"unfreeze: {group!r} does not train; groups that do: {', '.join(known)}")
            at_least(0, **{f"unfreeze.{group}": step})
        if known and all(steps.get(group, 0) > 0 for group in known):
            raise ValueError(f"unfreeze: nothing trains before step {min(steps.values())}: leave a group out")
        self._waiting = []
        for group, step in steps.items():
            names = trained.keys() & set(groups[group])
            still = {id(each) for name, each in module.named_parameters() if name in names or name not in trained}
            resting = {
                inner: None
                for each in module.modules()
                if (own := {id(parameter) for parameter in each.parameters()}) and own <= still
                for inner in each.modules()
                if inner.training
            }
            self._waiting.append((step, [trained[name] for name in sorted(names)], list(resting)))

    def waiting(self, step: int) -> list[nn.Parameter]:
        """Parameters that do not train in a step, the number of those before it."""
        return [each for begin, parameters, _ in self._waiting if step < begin for each in parameters]

    def discard(self, step: int) -> None:
        """Throw the gradients of waiting parts away: after each backward pass, before anything looks at them."""
        for parameter in self.waiting(step):
            parameter.grad = None

    def set_modes(self, step: int) -> None:
        """Let waiting parts rest in evaluation mode, and the others train."""
        for begin, _, resting in self._waiting:
            for module in resting:
                module.training = step >= begin
