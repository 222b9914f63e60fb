"""Crops and their twins: fresh in each epoch, equal for any worker or cache; grid, silence, pairs, broken files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.audiosr.data.datamodule import SuperResolutionData
from zoo.audiosr.data.items import Silence
from zoo.audiosr.data.simulate import Simulation
from zoo.audiosr.data.sources import FileCorpus

RATE = 16000
SEGMENT = 4000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips below train/{high,low} and valid/{high,low}; a low clip is half of its high clip."""
    root = tmp_path_factory.mktemp("corpus")
    speech = SyntheticSpeech(RATE, seconds=(0.5, 0.7))
    for index in range(6):
        part = root / ("train" if index < 4 else "valid")
        audio = speech.utterance(index)
        files.write(part / "high" / "x" / f"{index}.wav", audio, RATE)
        files.write(part / "low" / "x" / f"{index}.flac", audio / 2, RATE)
    return root


def data(root: Path | None, tmp_path: Path, **options: object) -> SuperResolutionData:
    settings: dict = {"segment_samples": SEGMENT, "batch_size": 2, "sample_rate": RATE, "seed": 5, **options}
    module = SuperResolutionData(None if root is None else str(root), cache=str(tmp_path / "cache"), **settings)
    module.prepare_data()
    module.setup("fit")
    return module


def batches(module: SuperResolutionData, epoch: int, first: int = 0) -> Iterator[dict]:
    module.load_state_dict({"epoch": epoch, "batch": first})
    loader = module.train_dataloader()
    loader.batch_sampler.set_epoch(epoch)
    return iter(loader)


def assert_equal(one: dict, two: dict, **tolerance: float) -> None:
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=tolerance.get("atol", 0.0))


def test_batch_as_promised(corpus: Path, tmp_path: Path) -> None:
    batch = next(batches(data(corpus, tmp_path), 0))
    assert batch["high"].shape == batch["low"].shape == (2, 1, SEGMENT)
    assert batch["cutoff_hz"].shape == (2,) and {value.dtype for value in batch.values()} == {torch.float32}
    assert ((batch["cutoff_hz"] >= 2000) & (batch["cutoff_hz"] <= 7600)).all()


@pytest.mark.parametrize("mode", ["simulate", "paired"])
def test_epochs_differ_and_workers_and_resume_do_not(corpus: Path, tmp_path: Path, mode: str) -> None:
    alone, helped = (data(corpus, tmp_path, mode=mode, num_workers=workers) for workers in (0, 2))
    whole = list(batches(alone, 1))
    assert len(whole) == 2
    for one, two in zip(whole, batches(helped, 1), strict=True):
        assert_equal(one, two)
    assert_equal(next(batches(alone, 1, first=1)), whole[1])
    items = [alone.train_set[epoch, 0] for epoch in (0, 1)]
    assert not torch.equal(items[0]["high"], items[1]["high"])
    if mode == "simulate":
        assert len({float(alone.train_set[epoch, 0]["cutoff_hz"]) for epoch in range(6)}) > 3


def test_crops_are_raised_to_where_restoring_brings_its_input(corpus: Path, tmp_path: Path) -> None:
    plain = data(corpus, tmp_path).train_set
    for most in (1.0, 60.0):
        raised = data(corpus, tmp_path, most_gain_db=most).train_set
        for item in range(4):
            one, two = plain[0, item], raised[0, item]
            peak = float(one["low"].abs().max())
            gain = min(0.95 / peak, 10 ** (most / 20))
            assert (gain == 0.95 / peak) == (most > 20 or peak > 0.85) and two["cutoff_hz"] == one["cutoff_hz"]
            for key in ("high", "low"):
                torch.testing.assert_close(two[key], gain * one[key])


def test_caches_give_the_same(corpus: Path, tmp_path: Path) -> None:
    plain = Simulation(codec=0.0)
    modules = {
        mode: data(corpus, tmp_path / mode, cache_mode=mode, simulation=plain, sample_rate=12000)
        for mode in ("memmap", "ram", "none")
    }
    assert not (tmp_path / "none").exists()
    for item in range(2):
        expected, ram, none = (module.train_set[3, item] for module in modules.values())
        assert_equal(expected, ram)
        assert_equal(expected, none, atol=3e-4)
    assert_equal(modules["memmap"].val_set[1], modules["none"].val_set[1], atol=3e-4)


def test_validation_is_a_grid(corpus: Path, tmp_path: Path) -> None:
    module = data(corpus, tmp_path, val_cutoffs_hz=[1000, 3000, 5000], val_samples=2000)
    assert len(module.val_set) == 6
    cutoffs = [float(module.val_set[item]["cutoff_hz"]) for item in range(6)]
    assert cutoffs == [1000, 3000, 5000] * 2
    assert torch.equal(module.val_set[0]["high"], module.val_set[2]["high"])
    assert module.val_set[0]["high"].shape == (1, 2000)
    again = data(corpus, tmp_path, val_cutoffs_hz=[1000, 3000, 5000], val_samples=2000, seed=9)
    assert_equal(module.val_set[4], again.val_set[4])
    twin = Simulation().limited(module.val_set[4]["high"][0].numpy(), RATE, 3000, number=2)
    np.testing.assert_array_equal(twin, module.val_set[4]["low"][0])
    assert data(corpus, tmp_path, val_items=1).val_set.cutoffs_hz == [2000, 4000]
    with pytest.raises(ValueError, match="val_cutoffs_hz"):
        data(corpus, tmp_path, val_cutoffs_hz=[9000])


def test_validation_by_ratio_list_and_folder(corpus: Path, tmp_path: Path) -> None:
    high = corpus / "train" / "high"
    module = data(high, tmp_path, val_ratio=0.5)
    assert (len(module.train_set), len(module.val_set.indices)) == (2, 2)
    drawn = {frozenset(data(high, tmp_path, val_ratio=0.5, split_seed=seed).val_set.indices) for seed in range(5)}
    assert len(drawn) > 1
    (tmp_path / "val.txt").write_text("x/1\n")
    listed = data(high, tmp_path, val_list=str(tmp_path / "val.txt"))
    assert (len(listed.train_set), len(listed.val_set.indices)) == (3, 1)
    given = data(high, tmp_path, valid_root=str(corpus / "valid"))
    assert (len(given.train_set), len(given.val_set.indices)) == (4, 2)
    last = data(high, tmp_path, val_ratio=None, val_items=2)
    assert (len(last.train_set), list(last.val_set.indices)) == (2, [2, 3])
    with pytest.raises(ValueError, match="val_ratio"):
        data(high, tmp_path, val_ratio=1.0)


def test_silence_is_passed_over(tmp_path: Path) -> None:
    tone = (0.5 * np.sin(np.arange(2 * RATE))).astype(np.float32)
    tone[: RATE + RATE // 2] = 0
    for name in "abc":
        files.write(tmp_path / "c" / f"{name}.wav", tone, RATE)
    files.write(tmp_path / "c" / "d.wav", np.zeros(RATE, np.float32), RATE)
    options = {"val_ratio": 0.25, "blank_hop_seconds": 0.05, "simulation": Simulation(codec=0.0), "split_seed": 1}
    blank = Silence(0.3, 800, 1e-4)
    for ratio, most in ((0.3, 0.2), (1.0, 1.0)):
        module = data(tmp_path / "c", tmp_path, blank_ratio_max=ratio, **options)
        crops = [module.train_set[epoch, item]["high"][0].numpy() for epoch in range(8) for item in range(3)]
        silent = np.mean([blank.share(crop) > 0.3 for crop in crops])
        assert silent <= most
    assert silent > 0.5
    assert_equal(module.train_set[2, 1], module.train_set[2, 1])


def test_a_short_clip_is_padded_and_its_padding_no_silence(tmp_path: Path) -> None:
    for name in "ab":
        files.write(tmp_path / "c" / f"{name}.wav", np.full(1000, 0.5 if name == "a" else -0.5, np.float32), RATE)
    module = data(tmp_path / "c", tmp_path, batch_size=1)
    crops = [module.train_set[epoch, 0]["high"][0] for epoch in range(4)]
    assert all(torch.equal(crop, crops[0]) for crop in crops)
    assert (crops[0][:1000].abs() > 0.9).all() and (crops[0][1000:] == 0).all()


def test_pairs_keep_their_levels(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = data(corpus, tmp_path, mode="paired", blank_ratio_max=1.0)
    for item in (module.train_set[0, 1], module.val_set[1]):
        torch.testing.assert_close(item["low"], item["high"] / 2, rtol=0, atol=1e-4)
        assert 0 < float(item["cutoff_hz"]) < RATE / 2
    assert len(module.val_set) == 2 and "differ" not in caplog.text


def test_uneven_broken_and_lonely_pairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tone = (0.5 * np.sin(np.arange(8000))).astype(np.float32)
    for name in "abcd":
        files.write(tmp_path / "p" / "high" / f"{name}.wav", tone, RATE)
        files.write(tmp_path / "p" / "low" / f"{name}.wav", tone[: 3000 if name == "a" else None], RATE)
    (tmp_path / "p" / "low" / "d.wav").write_bytes(b"RIFF")
    for mode in ("memmap", "none"):
        caplog.clear()
        options = {"mode": "paired", "val_ratio": 0.4, "max_bad_share": 0.3, "cache_mode": mode}
        module = data(tmp_path / "p", tmp_path, **options)
        assert "d.wav" in caplog.text and "1 of 4 pairs" in caplog.text
        assert len(module.train_set) + len(module.val_set) == 3
        sounding = [int((item["high"] != 0).sum()) for item in (module.val_set[0], *_all(module))]
        assert sorted(sounding)[0] < 3001 < sorted(sounding)[1]
    (tmp_path / "p" / "low" / "c.wav").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 files.*no counterpart.*: c"):
        data(tmp_path / "p", tmp_path, mode="paired")
    with pytest.raises(FileNotFoundError, match="expected the folders"):
        data(tmp_path / "p" / "high", tmp_path, mode="paired")
    with pytest.raises(ValueError, match="root"):
        data(None, tmp_path, mode="paired")


def _all(module: SuperResolutionData) -> list[dict]:
    return [module.train_set[0, item] for item in range(len(module.train_set))]


def test_a_file_that_breaks_while_read_is_passed_over(tmp_path: Path) -> None:
    for name in "abc":
        files.write(tmp_path / "c" / f"{name}.flac", np.full(9000, 0.5, np.float32), RATE)
    module = data(tmp_path / "c", tmp_path, cache_mode="none", max_bad_share=0.4, batch_size=1)
    broken = module.train_set.recordings.high._paths[int(module.train_set.indices[0])]
    broken.write_bytes(b"no audio any more")
    assert module.train_set[0, 0]["high"].abs().max() > 0.9
    with pytest.raises(ValueError, match=r"1 of 3 audio files.*max_bad_share"):
        FileCorpus(sorted((tmp_path / "c").iterdir()), RATE, 0.1)


def test_embedded_corpus_with_noise(tmp_path: Path) -> None:
    module = data(None, tmp_path, embedded_utterances=3, simulation=Simulation(noise=1.0, snr_db=(5, 5), codec=0.0))
    assert (len(module.train_set), len(module.val_set.indices)) == (2, 1)
    assert module.train_set[0, 0]["low"].isfinite().all()
    with pytest.raises(FileNotFoundError, match="root"):
        data(tmp_path / "absent", tmp_path)
