"""Batches of texts: lengths, budgets, ranks, agents, resume, packing."""

from itertools import chain

import numpy as np
import pytest

from zoo.ci_llm.data.buckets import TextBatches, pack, padding_share

LENGTHS = np.random.default_rng(0).integers(20, 400, 500)


def epoch(batches, number=0):
    batches.set_epoch(number)
    return [[index for _, index in keys] for keys in batches]


def test_every_text_once_and_little_padding():
    batches = TextBatches(LENGTHS, batch_size=4, drop_last=False)
    found = epoch(batches)
    assert len(found) == len(batches) == 125
    assert sorted(chain(*found)) == list(range(500))
    assert padding_share(LENGTHS, found) < 0.1
    assert epoch(batches, 1) != found and epoch(batches, 0) == found


def test_budget_holds_and_every_epoch_has_as_many_batches():
    batches = TextBatches(LENGTHS, token_budget=2000, agents=2, agent_data="bootstrap")
    for number in range(3):
        found = epoch(batches, number)
        assert len(found) == len(batches)
        for batch in found:
            assert len(batch) % 2 == 0
            assert LENGTHS[batch].max() * len(batch) <= 2000
    assert {len(batch) for batch in found} > {4, 6}
    with pytest.raises(ValueError, match=r"token budget of 300 .* raise data.init_args.token_budget"):
        TextBatches(LENGTHS, token_budget=300)


def test_least_rows():
    longest = int(LENGTHS.max())
    assert min(map(len, epoch(TextBatches(LENGTHS, token_budget=2 * longest, least=2)))) == 2
    with pytest.raises(ValueError, match="no room for 2 text"):
        TextBatches(LENGTHS, token_budget=2 * longest - 1, least=2)


@pytest.mark.parametrize("drop_last", [True, False])
def test_two_ranks_see_what_one_sees(drop_last):
    whole = epoch(TextBatches(LENGTHS, batch_size=6, drop_last=drop_last))
    parts = [epoch(TextBatches(LENGTHS, batch_size=3, rank=r, world=2, drop_last=drop_last)) for r in range(2)]
    assert len(parts[0]) == len(parts[1]) == len(whole)
    for one, left, right in zip(whole, *parts, strict=True):
        assert one[::2] == left and one[1::2] == right


def test_agents_have_orders_of_their_own():
    shared = epoch(TextBatches(LENGTHS, batch_size=4, agents=3))
    own = epoch(TextBatches(LENGTHS, batch_size=4, agents=3, agent_data="shuffled", drop_last=False))
    assert all(len(batch) == 4 for batch in shared) and all(len(batch) == 12 for batch in own)
    streams = [[batch[4 * k : 4 * k + 4] for batch in own] for k in range(3)]
    assert streams[0] != streams[1] != streams[2]
    for stream in streams:
        assert sorted(chain(*stream)) == list(range(500))
    assert padding_share(LENGTHS, own) < 0.12
    fewer = epoch(TextBatches(LENGTHS, batch_size=4, agents=2, agent_data="shuffled", drop_last=False))
    assert [batch[:8] for batch in own] == fewer


def test_bootstrap_is_one_sample_for_all_epochs():
    batches = TextBatches(LENGTHS, batch_size=4, agents=2, agent_data="bootstrap", drop_last=False)
    first, second = epoch(batches, 0), epoch(batches, 1)
    samples = [[sorted(chain(*(b[4 * k : 4 * k + 4] for b in found))) for k in range(2)] for found in (first, second)]
    assert samples[0] == samples[1] and samples[0][0] != samples[0][1]
    assert 0.5 < len(set(samples[0][0])) / 500 < 0.75
    assert first != second


def test_resume():
    batches = TextBatches(LENGTHS, token_budget=3000)
    whole = epoch(batches, 2)
    again = TextBatches(LENGTHS, token_budget=3000)
    again.resume_at(2, 5)
    assert [[index for _, index in keys] for keys in again] == whole[5:]
    assert epoch(again, 3) == epoch(batches, 3)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="give one of"):
        TextBatches(LENGTHS)
    with pytest.raises(ValueError, match="do not fill one batch"):
        TextBatches([5, 6], batch_size=3)
    with pytest.raises(ValueError, match="agent_data"):
        TextBatches(LENGTHS, batch_size=2, agent_data="other")


def test_packing_fills_rows():
    rows = pack(LENGTHS, 512)
    assert sorted(chain(*rows)) == list(range(500))
    sums = [LENGTHS[row].sum() for row in rows]
    assert max(sums) <= 512 and LENGTHS.sum() / (512 * len(rows)) > 0.97
    assert pack(LENGTHS, 512) == rows != pack(LENGTHS, 512, seed=1)
    assert pack([4, 3, 3, 2], 6) in ([[0, 3], [1, 2]], [[0, 3], [2, 1]])
    with pytest.raises(ValueError, match="does not fit"):
        pack([600], 512)
