import torch
from torch import Tensor

from zoo.compressed_ad import Darkroom, FactoredEmbedding, InContextPolicy, Transformer
from zoo.compressed_ad.evaluation.memory_gap import probe_memory, summarise_gap
from zoo.compressed_ad.nets.policy import ContextState
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.rollout import ContextPlayer

ENV = Darkroom(5, 8)


class Remembers(InContextPolicy):
    """Acts at random until it has seen a reward, then walks to the cell that gave it: down or up, then across."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__(FactoredEmbedding(16, 5), Transformer(16, 1, 2, 12))
        self.forgets = forgets
        self.goal: Tensor | None = None
        self.dry = 0

    def act(self, state: ContextState, queries: Tensor) -> Tensor:
        if self.goal is None:
            self.goal = torch.full_like(queries, -1)
        way = self.goal - queries
        best = torch.where(
            way[:, 0] != 0, (way[:, 0] < 0).long(), torch.where(way[:, 1] != 0, 2 + (way[:, 1] < 0).long(), 4)
        )
        logits = torch.nn.functional.one_hot(best, 5) * 100.0
        return torch.where(self.goal[:, :1] >= 0, logits, torch.zeros_like(logits))

    def observe(self, state: ContextState, step: Steps) -> None:
        assert self.goal is not None
        self.goal = torch.where(step.rewards > 0, step.next_states[:, 0], self.goal)
        self.dry = 0 if step.rewards.any() else self.dry + 1
        if self.forgets and self.dry >= 12:
            self.goal = torch.full_like(self.goal, -1)


def memory_gap(net: InContextPolicy, tasks: Tensor) -> Tensor:
    with ContextPlayer(net, ENV, tasks, range(len(tasks))) as player:
        return probe_memory(player, player.run_episodes(4), 12)


def test_who_remembers_is_reported_from_who_forgets() -> None:
    tasks = ENV.tasks().repeat(20, 1)
    remaining, lost = memory_gap(Remembers(), tasks), memory_gap(Remembers(forgets=True), tasks)
    best = ENV.best_return(tasks, torch.tensor([[2, 2]]).expand(len(tasks), 2)).float()
    results = remaining[:, 0] > 0
    assert torch.equal(remaining[results, 2], best[results])
    assert torch.equal(remaining[:, 0], lost[:, 0])
    facts = summarise_gap(remaining, ENV, tasks), summarise_gap(lost, ENV, tasks)
    assert facts[0]["pairs"] == len(tasks) and 0 < facts[0]["count"] < len(tasks)
    assert facts[0]["after"] == facts[0]["oracle"]
    assert facts[1]["random"] < facts[1]["after"] < facts[0]["after"] / 2
