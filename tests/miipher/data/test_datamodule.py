"""Clean and degraded clips: alignment, determinism, segments, splits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.audio.augment.degrade import Degrader
from zoo.audio.corpora.corpus import CorpusOptions, MemoryCorpus
from zoo.audio.corpora.synthetic import write_synthetic_corpus
from zoo.audio.io import files
from zoo.miipher.data.datamodule import DegradationOptions, SpeakerSplit, SpeechData, VocoderSegments

RATE = 22050


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_synthetic_corpus(folder / "anna", utterances=4, sample_rate=RATE)
    write_synthetic_corpus(folder / "bert", utterances=3, sample_rate=RATE)
    return folder


def ready(
    kind: type[SpeechData] = SpeechData, root: Path | None = None, items: int = 1, utterances: int = 4, **options: Any
) -> Any:
    cache = "" if root is None else str(root.parent / "cache")
    options = {"split": SpeakerSplit(items=items), **options}
    data = kind(
        root=None if root is None else str(root), corpus=CorpusOptions(cache, embedded_utterances=utterances), **options
    )
    data.prepare_data()
    data.setup("fit")
    return data


def test_a_batch_is_padded() -> None:
    batch = next(iter(ready(utterances=6, batch_size=5, max_seconds=30.0).train_dataloader()))
    assert batch["clean"].shape[0] == 5
    assert int(batch["lengths"].max()) == batch["clean"].shape[1] > int(batch["lengths"].min())
    for clean, length in zip(batch["clean"], batch["lengths"], strict=True):
        assert clean[length:].abs().sum() == 0
    assert torch.equal(batch["clean"], batch["input"])


def segments_of(speech: np.ndarray, audio: np.ndarray, **options: Any) -> Any:
    """The training segments of one recording, at 16 kHz and at the vocoder's rate."""
    segments = ready(VocoderSegments, utterances=3, **options).train_set
    segments.corpora = tuple(MemoryCorpus(["a"], [clip.astype(np.float32)]) for clip in (speech, audio))
    segments.indices = np.array([0])
    return segments


def test_segments_lie_on_the_frame_grid() -> None:
    clicks, audio = np.zeros(16000 * 2), np.zeros(RATE * 2)
    clicks[::320] = audio[::441] = 1.0
    segments = segments_of(clicks, audio, segment_frames=10, context_frames=5)
    for epoch in range(5):
        item = segments[(epoch, 0)]
        assert item["input"].shape == (20 * 320,) and item["audio"].shape == (10 * 441,)
        assert torch.equal(item["input"].nonzero()[:, 0] % 320, torch.zeros(20, dtype=torch.int64))
        assert torch.equal(item["audio"].nonzero()[:, 0] % 441, torch.zeros(10, dtype=torch.int64))
        assert 0 <= int(item["first"]) <= 10


def test_short_clips_are_padded() -> None:
    item = segments_of(np.ones(1000), np.ones(1378), segment_frames=50, context_frames=50)[(0, 0)]
    assert item["input"].shape == (150 * 320,) and int(item["lengths"]) == 1000 and int(item["first"]) == 0
    assert item["audio"].shape == (50 * 441,)


def test_speakers_are_held_out(corpus: Path) -> None:
    data = ready(root=corpus, split=SpeakerSplit(("bert",)))
    names = [data.train_set.corpus.names[i] for i in data.train_set.indices]
    assert len(names) == 4 and all(name.startswith("anna/") for name in names)
    with pytest.raises(ValueError, match="carla"):
        ready(root=corpus, split=SpeakerSplit(("carla",)))


def test_versions_made_before_are_found(corpus: Path, tmp_path: Path) -> None:
    for path in files.find_audio_files(corpus):
        audio, rate = files.read(path)
        files.write(tmp_path / "degraded" / path.relative_to(corpus).with_suffix(".flac"), 0.5 * audio, rate)
    folder = str(tmp_path / "degraded")
    item = ready(root=corpus, items=2, degraded=folder).train_set[(0, 0)]
    scale = float(item["clean"].abs().max() / item["input"].abs().max())
    torch.testing.assert_close(item["input"] * scale, item["clean"], atol=1e-3, rtol=0)
    next(iter((tmp_path / "degraded").rglob("*.flac"))).unlink()
    with pytest.raises(ValueError, match=r"1 clips .* have no degraded version"):
        ready(root=corpus, items=2, degraded=folder)


def test_without_corpora_the_embedded_one_is_degraded(tmp_path: Path) -> None:
    root, degraded = tmp_path / "clean", str(tmp_path / "degraded")
    data = SpeechData(
        str(root), degraded=degraded, degradation=DegradationOptions(Degrader(steps=["noise"])),
        corpus=CorpusOptions(embedded_if_missing=True, embedded_utterances=2), split=SpeakerSplit(items=1),
    )  # fmt: skip
    data.setup("fit")
    item = data.train_set[(0, 0)]
    assert not torch.equal(item["input"], item["clean"])


def write_clips(root: Path, *names: str, samples: int = 8000) -> None:
    for name in names:
        files.write(root / f"{name}.wav", np.full(samples, 0.1, np.float32), 16000)


def test_copies_of_a_recording_stay_on_one_side(tmp_path: Path) -> None:
    names = [f"{recording}_{copy}" for recording in "abc" for copy in range(3)]
    for tree in ("clean", "degraded"):
        write_clips(tmp_path / tree, *names)
    data = ready(root=tmp_path / "clean", degraded=str(tmp_path / "degraded"), items=2)
    assert (len(data.train_set), len(data.val_set)) == (6, 3)


def test_degraded_version_has_the_length_of_its_clip(tmp_path: Path) -> None:
    write_clips(tmp_path / "clean", "1", "2", "3", "4")
    for name, samples in {"1": 8320, "2": 8321, "3": 7680, "4": 7679}.items():
        write_clips(tmp_path / "degraded", name, samples=samples)
    with pytest.raises(ValueError, match=r"2 files .*2\.wav \(8321 samples, expected 8000\), 4\.wav"):
        ready(root=tmp_path / "clean", degraded=str(tmp_path / "degraded"))


@pytest.mark.parametrize(
    ("kind", "frame", "options"), [(SpeechData, 320, {}), (VocoderSegments, 640, {"frame_rate": 25})]
)
def test_clips_shorter_than_a_frame_are_left_out(
    tmp_path: Path, kind: type[SpeechData], frame: int, options: dict[str, Any]
) -> None:
    write_clips(tmp_path / "clean", "1", "3", "4")
    write_clips(tmp_path / "clean", "2", "5", samples=frame - 1)
    module = ready(kind, tmp_path / "clean", items=2, **options)
    assert (len(module.train_set), len(module.val_set)) == (2, 1)
    assert len(module.val_set[0]["input"]) >= frame


def test_validation_folders(corpus: Path) -> None:
    roots = {"root": corpus / "anna", "val_root": str(corpus / "bert")}
    versions = {"degraded": str(corpus / "anna"), "val_degraded": str(corpus / "bert")}
    data = ready(**roots)
    assert (len(data.train_set), len(data.val_set)) == (4, 3)
    data = ready(VocoderSegments, **roots, **versions)
    assert (len(data.train_set), len(data.val_set)) == (4, 3)
    clips = data.val_set.clips
    torch.testing.assert_close(clips[0]["input"], clips[0]["clean"])


def test_degraded_versions_and_targets_have_the_level_of_the_input(tmp_path: Path) -> None:
    for index, peak in enumerate((0.5, 0.04, 0.3)):
        clip = np.random.default_rng(index).uniform(-peak, peak, 22050)
        files.write(tmp_path / "clean" / f"{index}.wav", clip, RATE, "FLOAT")
        files.write(tmp_path / "degraded" / f"{index}.wav", 0.1 * clip, RATE, "FLOAT")
    options = {"root": tmp_path / "clean", "degraded": str(tmp_path / "degraded"), "sample_rate": RATE}
    data = ready(VocoderSegments, **options)
    for item in (data.train_set[0, 0], data.train_set[0, 1], data.val_set.clips[0]):
        assert 0.7 < float(item["input"].abs().max()) <= 0.96
    speech, audio = data.train_set.corpora
    for item in range(2):
        index = int(data.train_set.indices[item])
        target = data.train_set[0, item]["audio"]
        gain = min(0.95 / speech.peaks[index], 1 / audio.peaks[index])
        ratios = target.abs().max() / np.abs(audio.read(index)).max()
        assert ratios <= gain * 1.001


def test_wrong_options_are_refused(corpus: Path) -> None:
    folder = str(corpus / "anna")
    for match, make in (
        ("24010", lambda: VocoderSegments(sample_rate=24010)),
        ("val_degraded", lambda: SpeechData(folder, degraded=folder, val_root=folder)),
        ("side by side", lambda: SpeechData(str(corpus), val_root=folder)),
    ):
        with pytest.raises(ValueError, match=match):
            make()
