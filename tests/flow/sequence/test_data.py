import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.audio.augment.degrade import Degrader
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.flow.sequence.data import FeatureData, MelData

RATE, HOP = 8000, 64
DEGRADER = {"steps": ["noise"], "snr_db": (0.0, 10.0)}


def mels(tmp_path: Path, **kwargs: object) -> MelData:
    arguments = {"max_seconds": 0.4, "val_seconds": 0.5, "val_items": 2, "embedded_utterances": 6, "batch_size": 2}
    degrader = kwargs.pop("degrader", Degrader(**DEGRADER))
    mel = LogMel(RATE, 256, HOP, 256, 8, 0.0, 4000.0)
    module = MelData(mel, degrader, cache=str(tmp_path / "cache"), **{**arguments, **kwargs})
    module.prepare_data()
    module.setup("fit")
    return module


def features(tmp_path: Path, lengths: tuple[int, ...] = (9, 20, 30, 12, 25), **kwargs: object) -> FeatureData:
    """Clean frames count upwards; the degraded ones are those plus a half, with one channel more."""
    for i, length in enumerate(lengths):
        clean = np.arange(length, dtype=np.float16)[None].repeat(2, axis=0)
        for folder, array in (("clean", clean), ("degraded", np.vstack([clean, clean[:1]])[:, : length - i % 2] + 0.5)):
            (tmp_path / folder / "deep").mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / folder / "deep" / f"{i}.npy", array)
    arguments = {"max_frames": 10, "val_frames": 15, "val_items": 2, "batch_size": 3}
    module = FeatureData(str(tmp_path / "clean"), str(tmp_path / "degraded"), **{**arguments, **kwargs})
    module.setup("fit")
    return module


def test_embedded_speech(tmp_path: Path) -> None:
    module = mels(tmp_path)
    assert (len(module.train_set), len(module.val_set)) == (4, 2)
    batch = next(iter(module.train_dataloader()))
    frames = int(0.4 * RATE) // HOP
    assert {key: tuple(batch[key].shape) for key in ("x1", "x0", "condition")} == dict.fromkeys(
        ("x1", "x0", "condition"), (2, 8, frames)
    )
    assert batch["lengths"].tolist() == [frames, frames] and len(set(batch["seeds"])) == 2
    assert all(batch[key].dtype == torch.float32 for key in ("x1", "x0", "condition"))
    assert 0.8 < float(batch["x0"].std()) < 1.2
    assert not torch.equal(batch["x1"], batch["condition"])
    (item,) = [batch for batch in module.val_dataloader()][:1]
    assert item["x1"].shape == (1, 8, int(0.5 * RATE) // HOP)


def test_items_depend_on_seed_epoch_and_item_alone(tmp_path: Path) -> None:
    one, two = mels(tmp_path), mels(tmp_path, batch_size=1)
    for key in ((0, 1), (3, 2)):
        first, second = one.train_set[key], pickle.loads(pickle.dumps(two.train_set))[key]
        assert all(torch.equal(first[name], second[name]) for name in ("x1", "x0", "condition"))
        assert first["seed"] == second["seed"]
    changed = (one.train_set[1, 1], mels(tmp_path, seed=5).train_set[0, 1])
    for other in changed:
        assert not torch.equal(one.train_set[0, 1]["condition"], other["condition"])
        assert one.train_set[0, 1]["seed"] != other["seed"]
    assert torch.equal(one.val_set[0]["condition"], two.val_set[0]["condition"])


def test_the_degraded_crop_is_the_clean_one_degraded(tmp_path: Path) -> None:
    quiet = mels(tmp_path, degrader=Degrader(steps=[], gain=(0.5, 0.5)))
    item = quiet.train_set[0, 0]
    loud = item["x1"] > -4  # far above the floor of the logarithm
    torch.testing.assert_close(
        item["condition"][loud], item["x1"][loud] + torch.tensor(0.5).log(), atol=2e-3, rtol=0
    )  # fmt: skip


def test_examples_come_evenly_from_the_training_set(tmp_path: Path) -> None:
    module = mels(tmp_path, statistics_items=2)
    examples = list(module.examples())
    wanted = [module.train_set[0, i] for i in (0, 3)]
    assert len(examples) == 2
    for (x1, condition), item in zip(examples, wanted, strict=True):
        assert torch.equal(x1, item["x1"]) and torch.equal(condition, item["condition"])
    assert len(list(mels(tmp_path, statistics_items=99).examples())) == 4


def test_folders_of_audio(tmp_path: Path) -> None:
    speech = SyntheticSpeech(RATE, seconds=(0.5, 0.8))
    for i in range(5):
        files.write(tmp_path / "speech" / f"{i}.wav", speech.utterance(i), RATE)
    files.write(tmp_path / "noise" / "a.wav", speech.utterance(9), RATE)
    files.write(tmp_path / "rir" / "a.wav", np.eye(1, 400, 3, dtype=np.float32)[0], RATE)
    folders = {name: str(tmp_path / place) for name, place in (("root", "speech"), ("noise", "noise"), ("rir", "rir"))}
    module = mels(tmp_path, degrader=Degrader(steps=["reverb", "noise"]), **folders)
    assert (len(module.train_set), len(module.val_set)) == (3, 2)
    batch = next(iter(module.train_dataloader()))
    assert bool(batch["x1"].isfinite().all()) and batch["x1"].shape == batch["condition"].shape


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.init_args\.noise: no folder"):
        mels(tmp_path, noise=str(tmp_path / "nowhere"))
    assert len(mels(tmp_path, root=str(tmp_path / "nowhere"), embedded_if_missing=True).train_set) == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no audio file below"):
        mels(tmp_path, root=str(tmp_path / "empty"))
    for wrong, message in (
        ({"val_items": 6}, "6 of 6 items are for validation"),
        ({"max_seconds": 0.001}, "max_seconds: 0.001 s are less than a frame"),
        ({"statistics_items": 0}, "statistics_items is at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            mels(tmp_path, **wrong)


def test_features_are_cropped_alike(tmp_path: Path) -> None:
    module = features(tmp_path)
    starts = set()
    for epoch in range(6):
        for i, frames in enumerate((9, 10, 10)):
            item = module.train_set[epoch, i]
            assert item["x1"].shape == (2, frames) and item["condition"].shape == (3, frames)
            torch.testing.assert_close(item["condition"][:2], item["x1"] + 0.5)
            starts.add(float(item["x1"][0, 0]))
    assert len(starts) > 3
    assert module.val_set[0]["x1"][0].tolist() == list(range(11))  # the shorter of both files
    assert module.lengths.tolist() == [9, 10, 10]


def test_batches_are_padded(tmp_path: Path) -> None:
    batch = next(iter(features(tmp_path).train_dataloader()))
    assert batch["x1"].shape == (3, 2, 10) and sorted(batch["lengths"].tolist()) == [9, 10, 10]
    short = batch["lengths"].tolist().index(9)
    assert not any(batch[key][short, :, 9:].any() for key in ("x1", "x0", "condition"))


def test_features_without_twin_or_alignment(tmp_path: Path) -> None:
    features(tmp_path)
    np.save(tmp_path / "degraded" / "deep" / "1.npy", np.zeros((3, 12)))
    module = FeatureData(str(tmp_path / "clean"), str(tmp_path / "degraded"), val_items=1)
    with pytest.raises(ValueError, match=r"has 20 frames, its counterpart .* has 12"):
        module.setup("fit")
    (tmp_path / "degraded" / "deep" / "1.npy").unlink()
    with pytest.raises(ValueError, match=r"1 of 5 files .* no counterpart of their name, among them .*1\.npy"):
        module.setup("fit")
    with pytest.raises(FileNotFoundError, match=r"data\.init_args\.degraded"):
        FeatureData(str(tmp_path / "clean"), str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="max_frames is at least 1"):
        FeatureData(str(tmp_path), str(tmp_path), max_frames=0)
