"""The dry run passes on what is sound, and fails, with all its checks run, on what is not."""

import pytest
import torch

from zoo.ci_llm.convert import sanity


def test_all_checks_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanity.report() == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["environment", "init", "gradients", "checkpoint", "diversity", "generation"]
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", name] for name in names]


def _last_agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the original does: the others get no gradients."""
    whole = sanity.Objective.of

    def of(self, crowd, *args):
        for weight in crowd.agents.parameters():
            weight.register_hook(lambda gradient: gradient * (torch.arange(len(gradient)) == 2)[:, None, None])
        return whole(self, crowd, *args)

    monkeypatch.setattr(sanity.Objective, "of", of)


def _same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = sanity.Agents.adapter
    monkeypatch.setattr(sanity.Agents, "adapter", lambda self, number: adapter(self, 0))


def _lost_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanity, "write_original", lambda folder, adapters: None)


@pytest.mark.parametrize(
    ("fault", "check", "told"),
    [
        (_last_agent_alone, "gradients", "an agent has no gradient"),
        (_same_start, "init", "two agents begin with the same weights"),
        (_lost_writes, "checkpoint", "FileNotFoundError"),
    ],
)
def test_a_fault_is_found(fault, check: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        getattr(sanity, check)()
    assert told in f"{type(raised.value).__name__}: {raised.value}"


def test_a_failed_check_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise RuntimeError("no such\n device")

    for name in ("environment", "init", "gradients", "checkpoint"):
        monkeypatch.setattr(sanity, name, lambda: "fine")
    monkeypatch.setattr(sanity, "diversity", broken)
    assert sanity.report() == 1
    said = capsys.readouterr().out
    assert "FAILED  diversity     RuntimeError: no such device" in said
    assert "ok      generation" in said and said.endswith("failed: diversity\n")
