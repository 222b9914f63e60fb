"""The same seed gives the same batches, whatever the number of workers and however they are started."""

import hashlib
from pathlib import Path

import pytest
import torch
from toy_system.data import PairData

from tests.audio.bad_audio import RATE
from tests.harness import TOY_FIT, assert_equal_runs, forked, good
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.audio.corpora.synthetic import write_synthetic_corpus
from zoo.flow.data.datamodule import ImageData
from zoo.hifigan.data import ValidationSplit, VocoderData
from zoo.training.datamodule import ZooDataModule


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_synthetic_corpus(folder / "audio", utterances=10, sample_rate=RATE)
    return folder


def make(system: str, corpus: Path, seed: int = 1) -> ZooDataModule:
    if system == "toy":
        data: ZooDataModule = PairData(items=16, batch_size=4, seed=seed)
    elif system == "flow":
        data = ImageData(
            image_resolution=8, channels=1, batch_size=7, max_per_class=4, val_every=4, flips=True, seed=seed
        )
    else:
        root, cache = str(corpus / "audio"), str(corpus / "cache")
        data = VocoderData(
            root, RATE, split=ValidationSplit(items=2), corpus=CorpusOptions(cache), batch_size=2, seed=seed
        )
    data.prepare_data()
    data.setup("fit")
    return data


def batches(data: ZooDataModule, workers: int = 0) -> list[str]:
    """Hashes of the batches of two epochs."""
    data.num_workers = workers
    loader = data.train_dataloader()
    loader.multiprocessing_context = "fork" if workers else None
    hashes = []
    for epoch in range(2):
        if hasattr(loader.batch_sampler, "set_epoch"):
            loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            hashes.append(hashlib.sha256(b"".join(map(content, batch.values()))).hexdigest())
    return hashes


def content(value: torch.Tensor | list[int]) -> bytes:
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, list[str]]:
    return {system: batches(make(system, corpus)) for system in ("toy", "hifigan", "flow")}


def test_same_batches_however_loaded(expected, corpus):
    for system in expected:
        assert batches(make(system, corpus), workers=2) == expected[system]


def test_same_training_with_spawned_workers(tmp_path):
    few = ["--trainer.max_steps=5", "--trainer.limit_val_batches=0", "--checkpoints.monitor=null"]
    for workers in (0, 1):
        options = [f"--data.init_args.num_workers={workers}", f"--trainer.default_root_dir={tmp_path / str(workers)}"]
        good(forked(*TOY_FIT, *few, *options, cwd=tmp_path, START_METHOD="spawn"))
    assert_equal_runs(tmp_path / "1", tmp_path / "0")


@pytest.mark.parametrize("system", ["toy", "hifigan", "flow"])
def test_epochs_and_seeds_differ(expected, corpus, system):
    both = expected[system]
    assert len(set(both)) == len(both) == 8
    assert not set(both) & set(batches(make(system, corpus, seed=2)))
