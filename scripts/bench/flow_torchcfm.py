"""A training step of flow matching against the example loop of torchcfm: flow_torchcfm.py step [--quick].

The package (Tong et al., MIT) brings its matchers; its CIFAR-10 example is not in the wheel and written anew here. It
needs `pip install --no-deps torchcfm POT`, best into a folder of its own that PYTHONPATH names.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench.flow import UNPAIRED, PlainStep, RunSettings, against, fit_of, plain_step
from scripts.bench.tools import Finding, command, in_folders, times_as_fast
from zoo.cli.trainer import ZooCLI
from zoo.flow.task import FlowTask

PACKAGE = "torchcfm"  # nothing here depends on it
MATCHERS = {
    "independent noise": ([UNPAIRED], "ConditionalFlowMatcher"),
    "paired over the epoch, theirs over the batch": ([], "ExactOptimalTransportConditionalFlowMatcher"),
}


class ExampleStep(PlainStep):
    """torchcfm's CIFAR-10 example on images in memory: its matcher, and an average of the whole state dict.

    Net, optimizer, rate, batch size and the average's decay are the recipe's, in the place of the example's own. The
    example has no classes: with labels, its net is told them, none is dropped.

    Args:
        matcher: of torchcfm, with `sample_location_and_conditional_flow`.
    """

    def __init__(self, task: FlowTask, images: Tensor, *args: Any, matcher: Any) -> None:
        super().__init__(task, images, *args)
        self.matcher = matcher
        self.averaged = copy.deepcopy(self.net)

    def __call__(self) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        x1, label = self.batch()
        t, x, velocity = self.matcher.sample_location_and_conditional_flow(torch.randn_like(x1), x1)
        loss = torch.mean((self.net(x, t, label) - velocity) ** 2)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self._update()

    @torch.no_grad()
    def _update(self) -> None:
        own, averaged = self.net.state_dict(), self.averaged.state_dict()
        for name, value in own.items():
            averaged[name].copy_(averaged[name] * self.decay + value * (1 - self.decay))


def step(settings: RunSettings) -> list[Finding]:
    """A step of `zoo fit` on the digits recipe, from its items on, against torchcfm's example with an equal net."""
    try:
        matching = import_module(f"{PACKAGE}.conditional_flow_matching")
    except ImportError as error:
        raise ValueError(f"{error.name} is missing: pip install --no-deps torchcfm POT") from error
    findings = []
    for name, (extra, matcher) in MATCHERS.items():
        fit = fit_of(settings, extra)
        example = plain_step(fit, ExampleStep, matcher=getattr(matching, matcher)(sigma=0.0))
        costs = against(settings, fit, example)
        findings.append(times_as_fast(f"training step, {name}: times as fast as torchcfm's example", costs, 1.0))
    return findings


if __name__ == "__main__":
    try:
        command("flow_torchcfm", in_folders({"step": step}, partial(RunSettings, partial(ZooCLI, "fit"))))
    except ValueError as error:
        sys.exit(f"flow_torchcfm.py: {error}")
