"""Texts that join and leave a running batch are those of `generate` for each alone."""

import random
import time

import pytest
import torch

from tests.ci_llm.nets.test_families import FAMILIES
from tests.ci_llm.nets.test_families import crowd as family_crowd
from zoo.ci_llm.aggregation.aggregator import BayesianAverage, Dirichlet, Fitted, Mean, SampleMember, Vote
from zoo.ci_llm.inference.continuous import BACKBONE, RunningBatch, Wanted
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling

EOS = (5, 9)
COUNT = 3


def alone(net, wanted, rule):
    """The new tokens of a request by itself."""
    ids = torch.tensor([list(wanted.ids)])

    def written(rule):
        found = generate(net, ids, torch.ones_like(ids), rule, wanted.max_new_tokens, EOS, wanted.sampling, 0,
                         [wanted.seed])  # fmt: skip
        new = found[0, ids.shape[1] :].tolist()
        ends = [place for place, token in enumerate(new) if token in EOS]
        return new[: ends[0] + 1] if ends else new

    if wanted.agent is None:
        return written(rule)
    with net.without_agents() if wanted.agent == BACKBONE else net.only(wanted.agent):
        return written(Mean())


def drawn_requests(draws, count):
    samplings = [Sampling(), Sampling(), Sampling(1.0), Sampling(0.7, top_p=0.9), Sampling(1.3, top_k=5)]
    return [
        Wanted(
            [draws.randrange(3, 24) for _ in range(draws.randrange(1, 13))], draws.randrange(1, 9),
            draws.choice([None, None, BACKBONE, *range(COUNT)]), draws.choice(samplings), draws.randrange(2**40),
        )
        for _ in range(count)
    ]  # fmt: skip


def check(net: Crowd, rule, draws, count, most=200):
    requests = drawn_requests(draws, count)
    running, left, found = RunningBatch(net, rule, EOS, most), list(requests), {}
    net.train()
    while left or running:
        for _ in range(min(len(left), draws.choice([0, 0, 1, 1, 3]))):
            running.add(left.pop(0))
        for wanted, tokens in running.step():
            found[wanted] = tokens
        assert running.cached_tokens <= most
    assert net.training and len(found) == count
    for number, wanted in enumerate(requests):
        assert found[wanted] == alone(net, wanted, rule), (number, wanted)


@pytest.fixture
def draws():
    seed = time.time_ns() % 2**32
    print("seed", seed)
    return random.Random(seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_arrivals_equal_one_by_one(family, draws):
    net = family_crowd(family, checkpointing=False)
    check(net, Mean(), draws, 6)


@pytest.mark.parametrize("rule", [BayesianAverage(), Dirichlet(0.3), Fitted([3, 1, 0]), SampleMember()],
                         ids=lambda rule: type(rule).__name__)  # fmt: skip
@pytest.mark.parametrize("made", [{}, {"top_layers": 1}, {"dora": True}], ids=["all blocks", "shared trunk", "dora"])
def test_rules_and_kinds_of_adapters(made, rule, draws):
    check(family_crowd("llama", checkpointing=False, **made), rule, draws, 6)


def test_a_window_and_a_shared_trunk(draws):
    check(family_crowd("gemma3_text", top_layers=1, checkpointing=False), Mean(), draws, 12)


def test_rows_wait_for_room_in_their_order():
    net = family_crowd("llama", checkpointing=False)
    running = RunningBatch(net, most_tokens=30)
    large = Wanted([3] * 20, 8)
    small = [Wanted([4], 2, agent) for agent in (0, 1)]
    for each in (small[0], large, small[1]):
        running.add(each)
    order = []
    while running:
        order += [wanted for wanted, _ in running.step()]
    assert order == [small[0], large, small[1]]  # what does not fit beside others is written alone, and none overtakes
    assert running.cached_tokens == 0


def test_whoever_wants_no_more_frees_its_rows():
    net = family_crowd("llama", checkpointing=False)
    running, asked = RunningBatch(net), []

    def ended(tokens):
        asked.append(len(tokens))
        return len(tokens) == 2

    running.add(Wanted([3, 4], 8, ended=ended))
    running.add(Wanted([3, 4], 8, ended=lambda tokens: True))
    running.add(Wanted([3, 4, 5], 3, 1))
    (first,) = running.step()
    assert first[1] == [] and running.cached_tokens == 4 * 3  # it never began
    (second,) = running.step()
    assert len(second[1]) == 2 and asked == [0, 1, 2]
    assert running.cached_tokens == 4  # one row, and the columns that it needs
    (third,) = running.step()
    assert len(third[1]) == 3 and not running


def test_what_cannot_run(draws):
    net = family_crowd("llama", checkpointing=False)
    running = RunningBatch(net)
    for said, wanted in {
        "agent 3 does not exist": Wanted([3], 2, 3),
        "agent -2 does not exist": Wanted([3], 2, -2),
        "is empty": Wanted([], 2),
        "60 tokens and 8 new ones do not fit": Wanted([3] * 60, 8),
        "max_new_tokens is at least 1": Wanted([3], 0),
    }.items():
        with pytest.raises(ValueError, match=said):
            running.add(wanted)
    assert not running and running.step() == []
    with pytest.raises(ValueError, match="Vote lets each agent write"):
        RunningBatch(net, Vote())
    with pytest.raises(ValueError, match="most_tokens"):
        RunningBatch(net, most_tokens=0)
