"""Clean and degraded twins: alignment, determinism, segments, splits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.augment.degrade import DegradationRanges, Degrader
from zoo.audio.corpora.corpus import MemoryCorpus, TrimmedCorpus
from zoo.audio.corpora.synthetic import SyntheticSpeech, write_synthetic_corpus
from zoo.audio.io import files
from zoo.miipher.data.datamodule import SpeechData, VocoderSegments

RATE = 22050


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_synthetic_corpus(folder / "anna", utterances=4, sample_rate=RATE)
    write_synthetic_corpus(folder / "bert", utterances=3, sample_rate=RATE)
    return folder


def noisy() -> Degrader:
    return Degrader(steps=("reverb", "noise"), ranges=DegradationRanges(snr_db=(0.0, 20.0)))


def ready(data):
    data.prepare_data()
    data.setup("fit")
    return data


def test_twins_are_aligned_and_differ(tmp_path):
    hiss = Degrader(steps=("noise",), ranges=DegradationRanges(snr_db=(0.0, 20.0)))
    data = ready(SpeechData(degrader=hiss, embedded_utterances=4, val_items=1, max_seconds=1.0))
    item = data.train_set[(0, 0)]
    assert item["clean"].shape == item["input"].shape and int(item["lengths"]) == len(item["clean"])
    lags = np.correlate(item["input"].numpy(), item["clean"].numpy(), mode="full")
    assert abs(int(np.abs(lags).argmax()) - (len(item["clean"]) - 1)) <= 1
    assert not torch.equal(item["input"], item["clean"])


def test_an_item_depends_on_seed_epoch_and_number_alone():
    first, second = (ready(SpeechData(degrader=noisy(), embedded_utterances=4, val_items=1)) for _ in range(2))
    for key in ((0, 1), (3, 1)):
        assert torch.equal(first.train_set[key]["input"], second.train_set[key]["input"])
    assert not torch.equal(first.train_set[(0, 1)]["input"], first.train_set[(1, 1)]["input"])
    assert torch.equal(first.val_set[0]["input"], second.val_set[0]["input"])


def test_a_batch_is_padded_and_says_how_far():
    data = ready(SpeechData(embedded_utterances=6, val_items=1, batch_size=5, max_seconds=30.0))
    batch = next(iter(data.train_dataloader()))
    assert batch["clean"].shape[0] == 5
    assert int(batch["lengths"].max()) == batch["clean"].shape[1] > int(batch["lengths"].min())
    for clean, length in zip(batch["clean"], batch["lengths"], strict=True):
        assert clean[length:].abs().sum() == 0
    assert torch.equal(batch["clean"], batch["input"])


def test_validation_hears_other_noise():
    clip = np.arange(100, dtype=np.float32)
    whole = MemoryCorpus(["a"], [clip])
    begin, end = TrimmedCorpus(whole, 0.0, 0.8), TrimmedCorpus(whole, 0.8, 1.0)
    assert begin.lengths[0] == 80 and end.lengths[0] == 20
    assert begin.read(0)[-1] == 79 and end.read(0)[0] == 80
    assert len(begin.read(0, 70, 50)) == 10 and len(end.read(0, 25)) == 0


def test_segments_lie_on_the_frame_grid():
    data = ready(VocoderSegments(embedded_utterances=3, val_items=1, segment_frames=10, context_frames=5))
    clicks = np.zeros(16000 * 2, np.float32)
    clicks[::320] = 1.0
    audio = np.zeros(RATE * 2, np.float32)
    audio[::441] = 1.0
    data.train_set.corpora = MemoryCorpus(["a"], [clicks]), MemoryCorpus(["a"], [audio])
    data.train_set.indices = np.array([0])
    for epoch in range(5):
        item = data.train_set[(epoch, 0)]
        assert item["input"].shape == (20 * 320,) and item["audio"].shape == (10 * 441,)
        assert torch.equal(item["input"].nonzero()[:, 0] % 320, torch.zeros(20, dtype=torch.int64))
        assert torch.equal(item["audio"].nonzero()[:, 0] % 441, torch.zeros(10, dtype=torch.int64))
        assert 0 <= int(item["first"]) <= 10


def test_short_clips_are_padded():
    data = ready(VocoderSegments(embedded_utterances=3, val_items=1, segment_frames=50, context_frames=50))
    short = np.ones(1000, np.float32)
    data.train_set.corpora = MemoryCorpus(["a"], [short]), MemoryCorpus(["a"], [np.ones(1378, np.float32)])
    data.train_set.indices = np.array([0])
    item = data.train_set[(0, 0)]
    assert item["input"].shape == (150 * 320,) and int(item["lengths"]) == 1000 and int(item["first"]) == 0
    assert item["audio"].shape == (50 * 441,)


def test_share_of_clean_items():
    data = ready(
        VocoderSegments(
            embedded_utterances=3, val_items=1, degrader=noisy(), clean_share=0.5, segment_frames=5, context_frames=5
        )
    )
    flags = [bool(data.train_set[(epoch, 0)]["is_clean"]) for epoch in range(40)]
    assert 8 < sum(flags) < 32


def test_speakers_are_held_out(corpus, tmp_path):
    data = ready(SpeechData(root=str(corpus), cache=str(tmp_path), val_speakers=["bert"]))
    names = [data.train_set.corpus.names[i] for i in data.train_set.indices]
    assert len(names) == 4 and all(name.startswith("anna/") for name in names)
    with pytest.raises(ValueError, match="carla"):
        ready(SpeechData(root=str(corpus), cache=str(tmp_path), val_speakers=["carla"]))


def test_twins_made_before_are_found(corpus, tmp_path):
    for path in files.find_audio_files(corpus):
        audio, rate = files.read(path)
        files.write(tmp_path / "degraded" / path.relative_to(corpus).with_suffix(".flac"), 0.5 * audio, rate)
    folders = dict(root=str(corpus), degraded=str(tmp_path / "degraded"), cache=str(tmp_path / "cache"))
    data = ready(SpeechData(**folders, val_items=2))
    item = data.train_set[(0, 0)]
    scale = float(item["clean"].abs().max() / item["input"].abs().max())
    torch.testing.assert_close(item["input"] * scale, item["clean"], atol=1e-3, rtol=0)
    next(iter((tmp_path / "degraded").rglob("*.flac"))).unlink()
    with pytest.raises(ValueError, match=r"1 clips .* have no degraded version"):
        ready(SpeechData(**folders, val_items=2))
    with pytest.raises(ValueError, match="not both"):
        SpeechData(**folders, degrader=noisy())


def write_clips(root: Path, names: tuple[str, ...], samples: int = 8000) -> None:
    for name in names:
        files.write(root / f"{name}.wav", np.full(samples, 0.1, np.float32), 16000)


@pytest.mark.parametrize("folder", ["wavs/", ""])
def test_degraded_versions_lie_in_the_tree_of_the_root_or_flat(tmp_path: Path, folder: str) -> None:
    write_clips(tmp_path / "clean", ("wavs/1", "wavs/2", "wavs/3"))
    write_clips(tmp_path / "degraded", (f"{folder}1", f"{folder}2", f"{folder}3", "more/4"))
    folders = dict(root=str(tmp_path / "clean"), degraded=str(tmp_path / "degraded"), cache=str(tmp_path / "cache"))
    assert len(ready(SpeechData(**folders, val_items=1)).train_set) == 2


def test_flat_degraded_versions_need_unique_stems(tmp_path: Path) -> None:
    write_clips(tmp_path / "clean", ("a/1", "b/1", "b/2"))
    write_clips(tmp_path / "degraded", ("1", "2"))
    folders = dict(root=str(tmp_path / "clean"), degraded=str(tmp_path / "degraded"), cache=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"2 clips .* have no degraded version .*: a/1\.wav, b/1\.wav"):
        ready(SpeechData(**folders, val_items=1))


@pytest.mark.parametrize(
    ("samples", "fits"), [(8320, True), (7680, True), (4000, False), (16000, False), (8321, False)]
)
def test_degraded_version_has_the_length_of_its_clip(tmp_path: Path, samples: int, fits: bool) -> None:
    write_clips(tmp_path / "clean", ("1", "2", "3"))
    write_clips(tmp_path / "degraded", ("1", "3"))
    write_clips(tmp_path / "degraded", ("2",), samples)
    folders = dict(root=str(tmp_path / "clean"), degraded=str(tmp_path / "degraded"), cache=str(tmp_path / "cache"))
    if fits:
        ready(SpeechData(**folders, val_items=1))
    else:
        with pytest.raises(ValueError, match=rf"1 files .*2\.wav \({samples} samples, expected 8000\)"):
            ready(SpeechData(**folders, val_items=1))


@pytest.mark.parametrize("data", [SpeechData, VocoderSegments])
def test_clips_shorter_than_a_frame_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: type[SpeechData]
) -> None:
    write_clips(tmp_path / "clean", ("1", "3", "4"))
    write_clips(tmp_path / "clean", ("2", "5"), samples=319)
    module = ready(data(root=str(tmp_path / "clean"), cache=str(tmp_path / "cache"), val_items=2))
    assert (len(module.train_set), len(module.val_set)) == (2, 1)
    assert len(module.val_set[0]["input"]) >= 320
    assert "2.wav" in caplog.text and "5.wav" in caplog.text


def test_validation_may_lie_in_folders_of_its_own(corpus, tmp_path):
    folders = dict(root=str(corpus / "anna"), val_root=str(corpus / "bert"), cache=str(tmp_path))
    data = ready(SpeechData(**folders))
    assert (len(data.train_set), len(data.val_set)) == (4, 3)
    twins = dict(degraded=str(corpus / "anna"), val_degraded=str(corpus / "bert"))
    data = ready(VocoderSegments(**folders, **twins))
    assert (len(data.train_set), len(data.val_set)) == (4, 3)
    assert torch.equal(data.val_set.clips[0]["input"], torch.from_numpy(data.val_set.clips.corpus.read(0)))
    with pytest.raises(ValueError, match="val_degraded"):
        SpeechData(**folders, degraded=str(corpus / "anna"))


def test_vocoder_pairs_have_equal_duration(corpus, tmp_path):
    data = ready(
        VocoderSegments(root=str(corpus), cache=str(tmp_path), val_items=2, degrader=noisy(), sample_rate=24000)
    )
    item = data.val_set[0]
    assert len(item["input"]) % 320 == 0
    assert abs(len(item["audio"]) - len(item["input"]) // 320 * 480) <= 480
    batch = next(iter(data.val_dataloader()))
    assert batch["input"].shape[0] == 1


def test_missing_folders_are_named(caplog):
    with pytest.raises(FileNotFoundError, match=r"init_args\.noise"):
        SpeechData(noise="nowhere")
    assert SpeechData(root="nowhere", noise="nowhere", embedded_if_missing=True).root is None
    with pytest.raises(ValueError, match="24010"):
        VocoderSegments(sample_rate=24010)


def test_speech_like_corpus_is_used_without_files():
    data = ready(SpeechData(degrader=noisy(), embedded_utterances=3, val_items=1))
    expected = SyntheticSpeech(sample_rate=16000).utterance(0)
    assert data.train_set.corpus.lengths[0] == len(expected)
