"""Batches of texts: lengths, budgets, ranks, agents, resume."""

from itertools import chain

import numpy as np
import pytest

from zoo.ci_llm.data.buckets import TextBatches

LENGTHS = np.random.default_rng(0).integers(20, 400, 500)


def epoch(batches, number=0):
    batches.set_epoch(number)
    return [[index for _, index in keys] for keys in batches]


def test_budget_holds_and_every_epoch_has_as_many_batches():
    batches = TextBatches(LENGTHS, token_budget=2000, agents=2, agent_data="shuffled")
    for number in range(3):
        indices = epoch(batches, number)
        assert len(indices) == len(batches)
        for batch in indices:
            assert len(batch) % 2 == 0 and LENGTHS[batch].max() * len(batch) <= 2000
    assert {len(batch) for batch in indices} > {4, 6}
    batches.use_longest_items()
    longest = epoch(batches, 2)
    assert longest[0] in indices and longest == longest[:1] * len(longest)
    assert max(int(LENGTHS[batch].max()) * len(batch) for batch in indices) == LENGTHS[longest[0]].max() * len(
        longest[0]
    )


@pytest.mark.parametrize("options", [{"token_budget": 4000}, {"batch_size": 6, "agents": 2, "agent_data": "shuffled"}])
def test_every_text_is_seen_in_some_epoch(options):
    batches = TextBatches(LENGTHS, world=4, **options)
    counts = [sum(map(len, epoch(batches, number))) for number in range(20)]
    ranks = [TextBatches(LENGTHS, world=4, rank=rank, **options) for rank in range(4)]
    seen = {index for number in range(20) for rank in ranks for batch in epoch(rank, number) for index in batch}
    assert len(set(counts)) == 1 and len(seen) == 500


@pytest.mark.parametrize("drop_last", [True, False])
def test_two_ranks_see_what_one_sees(drop_last):
    one = epoch(TextBatches(LENGTHS, batch_size=6, drop_last=drop_last))
    ranks = [epoch(TextBatches(LENGTHS, batch_size=3, rank=r, world=2, drop_last=drop_last)) for r in range(2)]
    for batch, first, second in zip(one, *ranks, strict=True):
        assert batch[::2] == first and batch[1::2] == second


def test_agents_have_separate_orders():
    shared = epoch(TextBatches(LENGTHS, batch_size=4, agents=3))
    separate = epoch(TextBatches(LENGTHS, batch_size=4, agents=3, agent_data="shuffled", drop_last=False))
    assert all(len(batch) == 4 for batch in shared) and all(len(batch) == 12 for batch in separate)
    streams = [[batch[4 * k : 4 * k + 4] for batch in separate] for k in range(3)]
    assert streams[0] != streams[1] != streams[2]
    for stream in streams:
        assert sorted(chain(*stream)) == list(range(500))
    padded = sum(LENGTHS[batch].max() * len(batch) for batch in separate)
    assert 3 * LENGTHS.sum() > 0.88 * padded
    fewer = epoch(TextBatches(LENGTHS, batch_size=4, agents=2, agent_data="shuffled", drop_last=False))
    assert [batch[:8] for batch in separate] == fewer
