"""Compiling in place: what is given up and when."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo.training.compiling import compile_in_place


def test_a_failure_after_a_success_is_no_failure_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    net = nn.Linear(2, 1)
    compile_in_place(net)
    assert net(torch.zeros(1, 2)).shape == (1, 1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net(torch.zeros(1, 3))


def test_first_failure_is_logged_once_and_the_plain_call_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: Any, mode: str, fullgraph: bool) -> Any:
        def call(x: Tensor) -> Tensor:
            raise NotImplementedError(f"{mode} {fullgraph}")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    net = nn.Linear(2, 1)
    before = net(torch.ones(1, 2))
    compile_in_place(net, "max-autotune", fullgraph=True)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(net(torch.ones(1, 2)), before) and torch.equal(net(torch.ones(1, 2)), before)
    assert caplog.text.count("Linear is not compiled: NotImplementedError: max-autotune True") == 1
