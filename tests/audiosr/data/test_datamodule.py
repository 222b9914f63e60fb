"""Crops and counterparts: fresh in each epoch, equal for any worker or cache; grid, silence, pairs, broken files."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.corpora.corpus import CorpusOptions
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.audiosr.data.crops import SilenceFilter
from zoo.audiosr.data.datamodule import SuperResolutionData, ValidationSplit
from zoo.audiosr.data.simulate import Simulation
from zoo.cli.main import main
from zoo.hifigan.data import VocoderData

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
    """Make a datamodule of options such as `"split.ratio": 0.5`."""
    settings: dict = {"segment_samples": SEGMENT, "batch_size": 2, "sample_rate": RATE, "seed": 5}
    groups: dict = {"split": (ValidationSplit, {}), "silence": (SilenceFilter, {}), "corpus": (CorpusOptions, {})}
    for name, value in {"corpus.cache": str(tmp_path / "cache"), **options}.items():
        group, _, key = name.rpartition(".")
        (groups[group][1] if group else settings)[key] = value
    settings |= {group: kind(**values) for group, (kind, values) in groups.items()}
    module = SuperResolutionData(None if root is None else str(root), **settings)
    module.prepare_data()
    module.setup("fit")
    return module


def batches(module: SuperResolutionData, epoch: int, first: int = 0) -> Iterator[dict]:
    module.load_state_dict({"epoch": epoch, "batch": first})
    loader = module.train_dataloader()
    loader.batch_sampler.set_epoch(epoch)
    return iter(loader)


@pytest.mark.parametrize("mode", ["simulate", "paired"])
def test_epochs_differ_and_workers_and_resume_do_not(corpus: Path, tmp_path: Path, mode: str) -> None:
    alone, helped = (data(corpus, tmp_path, mode=mode, num_workers=workers) for workers in (0, 2))
    complete = list(batches(alone, 1))
    assert [batch[key].shape for batch in complete for key in ("high", "low")] == [(2, 1, SEGMENT)] * 4
    for one, two in zip(complete, batches(helped, 1), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    torch.testing.assert_close(next(batches(alone, 1, first=1)), complete[1], rtol=0, atol=0)
    items = [alone.train_set[epoch, 0] for epoch in (0, 1)]
    assert not torch.equal(items[0]["high"], items[1]["high"])
    if mode == "simulate":
        cutoffs_hz = {float(alone.train_set[epoch, 0]["cutoff_hz"]) for epoch in range(6)}
        assert len(cutoffs_hz) > 3 and min(cutoffs_hz) >= 2000 and max(cutoffs_hz) <= 7600
    else:
        for item in (alone.train_set[0, 1], alone.val_set[1]):
            torch.testing.assert_close(item["low"], item["high"] / 2, rtol=0, atol=1e-4)


def test_crops_are_raised_to_where_restoring_brings_its_input(corpus: Path, tmp_path: Path) -> None:
    plain = data(corpus, tmp_path).train_set
    for most in (1.0, 60.0):
        raised = data(corpus, tmp_path, max_gain_db=most).train_set
        one, two = plain[0, 0], raised[0, 0]
        gain = min(0.95 / float(one["low"].abs().max()), 10 ** (most / 20))
        assert two["cutoff_hz"] == one["cutoff_hz"]
        for key in ("high", "low"):
            torch.testing.assert_close(two[key], gain * one[key])


def test_caches_give_the_same(corpus: Path, tmp_path: Path) -> None:
    disk, ram = (data(corpus, tmp_path, cache_mode=mode, sample_rate=12000) for mode in ("memmap", "ram"))
    torch.testing.assert_close(disk.train_set[3, 1], ram.train_set[3, 1], rtol=0, atol=0)


def test_validation_is_a_grid(corpus: Path, tmp_path: Path) -> None:
    options = {"split.cutoffs_hz": [1000, 3000, 5000], "split.samples": 2000}
    module, again = data(corpus, tmp_path, **options), data(corpus, tmp_path, **options, seed=9)
    assert [float(module.val_set[item]["cutoff_hz"]) for item in range(6)] == [1000, 3000, 5000] * 2
    assert torch.equal(module.val_set[0]["high"], module.val_set[2]["high"])
    assert module.val_set[0]["high"].shape == (1, 2000) and module.val_set[0]["samples"] == 2000
    row = data(corpus, tmp_path, segment_samples=16000).val_set[0]  # clips have up to 0.7 s
    assert 8000 <= row["samples"] <= 11200 and not row["high"][0, row["samples"] :].any()
    torch.testing.assert_close(module.val_set[4], again.val_set[4], rtol=0, atol=0)
    low = Simulation().limit_band(module.val_set[4]["high"][0].numpy(), RATE, 3000, number=2)
    np.testing.assert_array_equal(low, module.val_set[4]["low"][0])
    assert data(corpus, tmp_path, **{"split.items": 1}).val_set.cutoffs_hz == [2000, 4000]


@pytest.mark.parametrize("options", [{"split.items": 2, "split.ratio": None}, {"split.ratio": 0.4}])
def test_copies_of_a_recording_stay_together(options: dict, tmp_path: Path) -> None:
    speech = SyntheticSpeech(RATE, seconds=(0.5, 0.7))
    for number in range(12):
        files.write(tmp_path / "high" / f"{'abc'[number % 3]}_{number}.wav", speech.utterance(number % 3), RATE)
    module = data(tmp_path / "high", tmp_path, **options)
    names = module.train_set.recordings.high.names
    train, val = ({names[index][0] for index in part.indices} for part in (module.train_set, module.val_set))
    assert train and val and not train & val


def test_pairs_beyond_full_scale_keep_their_levels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audio = SyntheticSpeech(RATE, seconds=(0.5, 0.7)).utterance(0)
    for index, peak in enumerate((0.5, 1.7, 0.9)):
        high = audio * peak / np.abs(audio).max()
        for part, gain in (("high", 1.0), ("low", 1.2)):
            files.write(tmp_path / "pairs" / part / f"{index}.wav", gain * high, RATE, "FLOAT")
    module = data(tmp_path / "pairs", tmp_path, mode="paired", **{"split.items": 1, "split.ratio": None})
    assert len(module.val_set) == 1 and "differ" not in caplog.text
    for pair in (module.train_set[0, 0], module.train_set[0, 1], module.val_set[0]):
        torch.testing.assert_close(pair["low"], 1.2 * pair["high"], atol=2e-4, rtol=0)
        assert 0 < float(pair["cutoff_hz"]) < RATE / 2


def test_validation_by_ratio_list_and_folder(corpus: Path, tmp_path: Path) -> None:
    high = corpus / "train" / "high"
    (tmp_path / "val.txt").write_text("x/1\n")
    for options, train, valid in (
        ({"split.ratio": 0.5}, 2, 2),
        ({"split.val_list": str(tmp_path / "val.txt")}, 3, 1),
        ({"split.root": str(corpus / "valid")}, 4, 2),
        ({"split.ratio": None, "split.items": 2}, 2, 2),
    ):
        module = data(high, tmp_path, **options)
        assert (len(module.train_set), len(module.val_set.indices)) == (train, valid)
    assert list(module.val_set.indices) == [2, 3]


def test_silence_is_avoided(tmp_path: Path) -> None:
    tone = (0.5 * np.sin(np.arange(2 * RATE))).astype(np.float32)
    tone[: RATE + RATE // 2] = 0
    for name in "abcd":
        files.write(tmp_path / "c" / f"{name}.wav", np.zeros(RATE) if name == "d" else tone, RATE)
    options = {"split.ratio": 0.25, "silence.hop_seconds": 0.05, "split.seed": 1}
    reference = SilenceFilter(0.3, 0.05)
    for share, most in ((0.3, 0.2), (1.0, 1.0)):
        module = data(tmp_path / "c", tmp_path, **{**options, "silence.max_share": share})
        crops = [module.train_set[epoch, item]["high"][0].numpy() for epoch in range(8) for item in range(3)]
        silent = np.mean([reference.silent_share(crop, RATE) > 0.3 for crop in crops])
        assert silent <= most
    assert silent > 0.5


def test_uneven_and_broken_pairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tone = (0.5 * np.sin(np.arange(8000))).astype(np.float32)
    for name in "abcd":
        files.write(tmp_path / "p" / "high" / f"{name}.wav", tone, RATE)
        files.write(tmp_path / "p" / "low" / f"{name}.wav", tone[: 3000 if name == "a" else None], RATE)
    (tmp_path / "p" / "low" / "d.wav").write_bytes(b"RIFF")
    options = {"split.ratio": 0.4, "corpus.max_bad_share": 0.3}
    module = data(tmp_path / "p", tmp_path, mode="paired", **options)
    assert "d.wav" in caplog.text and "1 of 4 pairs" in caplog.text
    items = [module.val_set[0], *(module.train_set[0, item] for item in range(len(module.train_set)))]
    lengths = sorted(int((item["high"] != 0).sum()) for item in items)
    assert len(lengths) == 3 and lengths[0] < 3001 < lengths[1]


@pytest.mark.parametrize(
    ("high", "low", "misfits"),
    [
        (("a/x.wav", "b/y.wav"), ("c/x.wav", "b/y.wav"), "1 of 2"),  # of the same stem in another folder
        (("x.wav", "x.flac", "y.wav"), ("x.wav", "y.wav"), "2 of 3"),
        (("x.wav", "y.wav"), ("x.wav", "x.flac", "y.wav"), "1 of 2"),
        (("x.wav", "y.wav"), ("y.wav",), "1 of 2"),
    ],
)
def test_each_clip_has_a_counterpart_of_its_own(tmp_path: Path, high: tuple, low: tuple, misfits: str) -> None:
    for folder, names in (("high", high), ("low", low)):
        for name in names:
            files.write(tmp_path / "p" / folder / name, np.full(8000, 0.1, np.float32), RATE)
    with pytest.raises(ValueError, match=rf"{misfits} files.*(a/)?x"):
        data(tmp_path / "p", tmp_path, mode="paired")


def test_vocoder_data_of_the_same_folder_have_another_cache(corpus: Path, tmp_path: Path) -> None:
    folder, cache = corpus / "train" / "high", tmp_path / "cache"
    data(folder, tmp_path)
    VocoderData(str(folder), RATE, corpus=CorpusOptions(str(cache))).prepare_data()
    assert len(list(cache.glob("*/audio.i16"))) == 2


def test_low_of_several_folders_is_no_target(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "train", tmp_path / "sets" / "speech")
    with pytest.raises(ValueError, match="speech/low"):
        data(tmp_path / "sets", tmp_path)


def test_cache_before_training(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"{{root: {corpus / 'train' / 'high'}, sample_rate: {RATE}, corpus: {{cache: {tmp_path / 'cache'}}}}}"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{class_path: zoo.audiosr.SuperResolutionData, init_args: {options}}}\n")
    assert main(["cache", str(recipe)]) == 0
    assert "3 clips for training" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("*/audio.i16"))) == 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"split.cutoffs_hz": [9000]}, "cutoffs_hz"),
        ({"split.items": -1}, "items"),
        ({"mode": "paired"}, "folders"),
        ({"sample_rate": 2 * RATE}, "sampled at 16000 Hz"),
        ({"split.root": "train/high/x"}, "side by side"),
        ({"split.root": "valid/high", "split.val_list": "list.txt"}, "root or val_list"),
    ],
    ids=str,
)
def test_refusals(options: dict, key: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus)
    with pytest.raises((ValueError, FileNotFoundError), match=key):
        data(corpus / "train" / "high", tmp_path, **options)
