from scripts.bench import tools as benchmark
from scripts.bench.tools import Cost


def test_ratio_is_the_median_of_neighbours_not_the_ratio_of_medians():
    one, other = [Cost(2, 20), Cost(9, 90), Cost(30, 10)], [Cost(1, 10), Cost(3, 10), Cost(5, 10)]
    assert benchmark.ratios(one, other) == Cost(3, 2)
    assert benchmark.median(one) == Cost(9, 20)
