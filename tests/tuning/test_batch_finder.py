import math

import numpy as np
import pytest

from tests.harness import REPOSITORY, TOY, TOY_FIT, callback
from zoo.ci_llm.data.buckets import TextBatches
from zoo.cli.main import main
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches
from zoo.training.resume import BucketBatchSampler
from zoo.tuning.batch_finder import search_batch_size

TOY_RECIPE = ["find-batch", *map(str, TOY_FIT[1:]), "--steps=1"]


@pytest.mark.parametrize("largest", [0, 1, 2, 5, 8, 97, 1000])
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("most", [math.inf, 1, 10, 64])
def test_search_ends_at_the_largest_size(largest, size, most):
    tried = []

    def trains(value):
        tried.append(value)
        assert value <= most
        return value <= largest

    result = search_batch_size(size, size <= largest, most, trains)
    bound = min(largest, most)
    assert len(tried) == len(set(tried)) <= 12
    assert bound / 2 < result <= bound or bound == result == 0


def test_a_size_that_runs_out_of_memory_ends_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{TOY}:{REPOSITORY}")
    monkeypatch.setenv("COLUMNS", "120")  # cells of a table are not broken
    monkeypatch.setattr("zoo.tuning.batch_finder.free_memory_bytes", lambda: 2000 << 20)  # it begins with up to 1000
    settings = ["--target=1", "--max=2", "--data.batch_size=1", *callback("Hungry", megabytes=900)]
    assert main([*TOY_RECIPE, *settings]) == 0
    output = capsys.readouterr().out
    assert "out of memory" in output and output.strip().splitlines()[-1] == "--data.init_args.batch_size=1"
    assert not list(tmp_path.iterdir())


def test_tries_take_the_longest_items():
    lengths = np.array([3, 9, 4, 1, 8, 2, 7, 5])
    bucketed = BucketBatchSampler(lengths, 2, seed=1)
    texts = TextBatches(lengths, token_budget=18, seed=1)
    curriculum = Curriculum(12, 3, [0, 3], [0, None], [[1.0], [0.3, 0.7]], shortest=4)
    histories = CurriculumBatches(64, 8, curriculum, available=25)
    for batches in (bucketed, texts, histories):
        batches.use_longest_items()
    assert [index for _, index in next(iter(bucketed))] == [1, 4]
    assert {tuple(sorted(index for _, index in keys)) for keys in texts} == {(1, 4)}
    longest = {steps for keys in histories for *_, steps in keys}
    steps = {curriculum.steps(step, seed, 25) for step in range(6) for seed in range(200)}
    assert longest == {max(steps)} and len(steps) > 5
