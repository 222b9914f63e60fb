import subprocess
import sys

import numpy as np
import pytest

from tests.harness import REPOSITORY, TOY, TOY_FIT, callback, environment
from zoo.ci_llm.data.buckets import TextBatches
from zoo.cli.main import main
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches
from zoo.training.resume import BucketBatchSampler
from zoo.tuning.batch_finder import search_batch_size

SMOKES = sorted((REPOSITORY / "configs").glob("*/smoke*.yaml"))
TOY_RECIPE = ["find-batch", *map(str, TOY_FIT[1:]), "--steps=1"]


@pytest.mark.parametrize("largest", [0, 1, 2, 5, 8, 97, 1000])
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("most", [None, 1, 10, 64])
def test_doubling_and_halving_end_at_the_largest(largest, size, most):
    tried = []

    def trains(value):
        tried.append(value)
        assert most is None or value <= most
        return value <= largest

    found = search_batch_size(size, size <= largest, most, trains)
    bound = min(largest, most or largest)
    assert len(tried) == len(set(tried)) <= 15
    assert (found is None) if bound == 0 else bound - max(1, bound // 8) <= found <= bound
    if bound < 8 or bound == most:
        assert (found or 0) == bound


def test_the_largest_batch_is_found_though_a_try_runs_out_of_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{TOY}:{REPOSITORY}")
    monkeypatch.setenv("COLUMNS", "120")  # cells of a table are not broken
    monkeypatch.setattr("zoo.tuning.batch_finder.free_memory_bytes", lambda: 2000 << 20)  # it begins with up to 1000
    settings = ["--target=1", "--data.batch_size=1", *callback("Hungry", megabytes=900)]
    assert main([*TOY_RECIPE, *settings]) == 0
    said = capsys.readouterr().out
    assert "out of memory" in said and said.strip().splitlines()[-1] == "--data.init_args.batch_size=1"
    assert not list(tmp_path.iterdir())


def test_the_longest_items_are_taken():
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
    drawn = {curriculum.steps(step, seed, 25) for step in range(6) for seed in range(200)}
    assert longest == {max(drawn)} and len(drawn) > 5


def test_memory_is_limited_to_a_count():
    code = """
import torch
from zoo.common.environment import peak_resident_bytes
from zoo.tuning.batch_finder import limit_memory
limit_memory(peak_resident_bytes() + (200 << 20))
torch.ones(50 << 18)
try:
    torch.ones(400 << 18)
except RuntimeError as error:
    print("survived")
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "survived"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["flow/smoke", "--target=2"], "target"),
        (["flow/smoke", "--max=0"], "max is at least 1"),
        (["flow/smoke", "--targt=2"], "did you mean --target"),
    ],
)
def test_mistakes_are_told_in_a_line(args, told, capsys):
    assert main(["find-batch", *args]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error:" in error and told in error


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SMOKES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_stage(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    assert main(["find-batch", str(recipe), "--steps=1", "--max=8"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("--data.init_args.batch_size=")
