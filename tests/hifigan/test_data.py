import json
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.corpora import cache
from zoo.audio.corpora.corpus import EmbeddedCorpus, read_list
from zoo.audio.corpora.synthetic import SpeechLike
from zoo.audio.io import files
from zoo.hifigan.data import VocoderData

RATE = 8000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    speech = SpeechLike(RATE, seconds=(0.5, 0.8))
    for index in range(6):
        files.write(root / "wavs" / f"clip{index}.wav", speech.utterance(index), RATE)
    return root


def data(root: Path | None, tmp_path: Path, **kwargs: object) -> VocoderData:
    module = VocoderData(
        root=None if root is None else str(root), sample_rate=RATE, segment_samples=512, batch_size=2, val_items=2,
        cache=str(tmp_path / "cache"), **kwargs,
    )  # fmt: skip
    module.prepare_data()
    module.setup("fit")
    return module


def test_crops_are_scaled_and_keyed(corpus: Path, tmp_path: Path) -> None:
    module = data(corpus, tmp_path)
    assert (len(module.train_set), len(module.val_set)) == (4, 2)
    crop = module.train_set[0, 1]["audio"]
    assert crop.shape == (512,)
    assert torch.equal(crop, module.train_set[0, 1]["audio"])
    assert not torch.equal(crop, module.train_set[1, 1]["audio"])
    whole = module.val_set[0]["audio"]
    assert whole.abs().max() == pytest.approx(0.95, abs=1e-4)


def test_short_clip_is_padded_on_the_right(tmp_path: Path) -> None:
    for index in range(3):
        files.write(tmp_path / "c" / f"{index}.wav", np.full(100, 0.5, np.float32), RATE)
    crop = data(tmp_path / "c", tmp_path).train_set[0, 0]["audio"]
    assert crop[:100].min() > 0.9
    assert torch.all(crop[100:] == 0)


def test_silence_stays_silence(tmp_path: Path) -> None:
    for index in range(3):
        files.write(tmp_path / "c" / f"{index}.wav", np.zeros(1000, np.float32), RATE)
    assert torch.all(data(tmp_path / "c", tmp_path).train_set[0, 0]["audio"] == 0)


@pytest.mark.parametrize("shape", ["(C, F)", "(1, C, F)"])
def test_features_are_cut_along(corpus: Path, tmp_path: Path, shape: str) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    hop = 64
    for path in files.find_audio_files(corpus):
        frames = files.info(path).samples // hop + 1  # centred mels have one frame more than the audio
        values = np.tile(np.arange(frames, dtype=np.float32), (3, 1))
        np.save(folder / f"{path.stem}.npy", values if shape == "(C, F)" else values[None])
    module = data(corpus, tmp_path, features=str(folder), feature_hop_samples=hop)
    item = module.train_set[0, 0]
    assert item["features"].shape == (3, 8)
    start = int(item["features"][0, 0]) * hop
    index = int(module.train_set.indices[0])
    expected = module.train_set.corpus.read(index, start, 512)
    np.testing.assert_array_equal(item["audio"].numpy(), expected)
    clip = module.val_set[0]
    assert clip["features"].shape[1] * hop == len(clip["audio"])
    (folder / "clip0.npy").unlink()
    with pytest.raises(FileNotFoundError, match="clip0"):
        [module.train_set[0, item] for item in range(4)]


def test_lists_of_other_projects(corpus: Path, tmp_path: Path) -> None:
    lists = {
        "ids": "clip0|text\nclip1|text\n",
        "paths": "wavs/clip0.wav\nwavs/clip1.wav\n",
        "jsonl": "".join(json.dumps({"path": f"clip{i}.wav"}) + "\n" for i in range(2)),
    }
    expected = [corpus / "wavs" / "clip0.wav", corpus / "wavs" / "clip1.wav"]
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        assert read_list(tmp_path / name, corpus) == expected
    (tmp_path / "val").write_text("clip5|x\n")
    module = data(corpus, tmp_path, train_list=str(tmp_path / "ids"), val_list=str(tmp_path / "val"))
    assert (len(module.train_set), len(module.val_set)) == (2, 1)
    (tmp_path / "bad").write_text("clip9|x\n")
    with pytest.raises(FileNotFoundError, match="clip9"):
        read_list(tmp_path / "bad", corpus)


def test_missing_corpus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FileNotFoundError, match="ZOO_DATA"):
        VocoderData(root=str(tmp_path / "absent"))
    module = data(tmp_path / "absent", tmp_path, embedded_if_missing=True, embedded_utterances=4)
    assert "embedded" in caplog.text
    assert len(module.train_set) == 2
    with pytest.raises(ValueError, match="no audio file"):
        (tmp_path / "empty").mkdir()
        data(tmp_path / "empty", tmp_path)


def test_sets_must_not_be_empty(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 of 2 clips are for validation"):
        data(None, tmp_path, embedded_utterances=2)
    with pytest.raises(ValueError, match="multiple"):
        VocoderData(segment_samples=1000, features="x", feature_hop_samples=256)


def test_embedded_corpus_reads_like_a_cache() -> None:
    corpus = EmbeddedCorpus(2, RATE)
    np.testing.assert_array_equal(corpus.read(0, 10, 5), corpus.read(0)[10:15])
    assert corpus.lengths[0] == len(corpus.read(0))
