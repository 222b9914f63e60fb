from tests.compressed_ad.parts import policy
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches

STARTS = [0, 30_000, 50_000, 75_000]
LIMITS = [1, 3, 6, None]
SHARES = [[0.60, 0.35, 0.05], [0.35, 0.40, 0.20, 0.05], [0.25, 0.30, 0.30, 0.15], [0.25] * 4]
ORIGINAL = Curriculum(60, 16, STARTS, LIMITS, SHARES)
SMALL = Curriculum(12, 3, [0, 4], [0, None], [[1.0], [0.5, 0.5]], shortest=4)


def test_lengths_of_the_categories() -> None:
    assert ORIGINAL.ranges(999) == [(20, 50), (60, 150), (200, 400), (500, 999), (800, 999)]
    # what is too long becomes the longest that is not
    assert ORIGINAL.ranges(300) == [(20, 50), (60, 150), (200, 300), (200, 300), (200, 300)]
    assert ORIGINAL.ranges(55) == [(20, 50)] * 5
    assert SMALL.ranges(8) == [(4, 8)] * 5


def test_compressions_stay_below_the_limit() -> None:
    net = policy(16, window=60)
    for stage, allowed in enumerate([1, 3, 6]):
        limit = ORIGINAL.limit(stage, 1000)
        assert len(net.segments(limit)) - 1 == allowed
        assert len(net.segments(limit + 1)) - 1 == allowed + 1
    assert ORIGINAL.limit(3, 1000) == 1000
    assert max(ORIGINAL.steps(100, seed, 1000) for seed in range(500)) <= ORIGINAL.limit(0, 1000) == 102


def test_stages_begin_at_their_steps_in_epochs_that_are_cut_or_accumulated() -> None:
    for limit, accumulated, steps in ((2, 1, 2), (0.25, 1, 2), (1.0, 2, 4), (1.0, 1, 8)):
        sampler = CurriculumBatches(64, 8, SMALL, 30, 7)
        sampler.count_steps(limit, accumulated)
        epochs = -(-SMALL.starts[1] // steps)
        assert max(sampler.steps(epoch, 0) for epoch in range(epochs)) <= 11
        assert max(sampler.steps(epoch, 0) for epoch in range(epochs, epochs + 40)) > 12
