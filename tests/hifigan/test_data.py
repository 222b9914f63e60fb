import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from zoo.audio import EmbeddedCorpus
from zoo.audio.corpora.corpus import corpus_files
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.hifigan.data import Clips, Crops, VocoderData
from zoo.hifigan.nets.generator import Generator

RATE = 8000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    speech = SyntheticSpeech(RATE, seconds=(0.5, 0.8))
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
        assert corpus_files(corpus, (str(tmp_path / name), None)) == expected
    (tmp_path / "val").write_text("clip5|x\n")
    module = data(corpus, tmp_path, train_list=str(tmp_path / "ids"), val_list=str(tmp_path / "val"))
    assert (len(module.train_set), len(module.val_set)) == (2, 1)
    (tmp_path / "bad").write_text("clip9|x\n")
    with pytest.raises(FileNotFoundError, match="clip9"):
        corpus_files(corpus, (str(tmp_path / "bad"), None))


def write_speakers(root: Path, samples: int = 1000) -> None:
    for place, name in enumerate(("a/1", "a/2", "b/1", "b/2", "d/1")):
        files.write(root / f"{name}.wav", np.full(samples, 0.1 * (place + 1), np.float32), RATE)


def names_of(dataset: Crops | Clips) -> list[str]:
    return [dataset.corpus.names[index] for index in dataset.indices]


def test_lists_tell_speakers_apart(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c")
    (tmp_path / "train").write_text("a/1\na/2\nb/1\nb/2\n")
    (tmp_path / "val").write_text("d/1\n")
    lists = {"val_list": str(tmp_path / "val")}
    for train_list in (None, str(tmp_path / "train")):
        module = data(tmp_path / "c", tmp_path, train_list=train_list, **lists)
        assert names_of(module.train_set) == ["a/1.wav", "a/2.wav", "b/1.wav", "b/2.wav"]
        assert names_of(module.val_set) == ["d/1.wav"]
    (tmp_path / "val").write_text("1\n")
    with pytest.raises(ValueError, match=r"val: 1 of 1 .*'1' \(3 clips: a/1\.wav, b/1\.wav, d/1\.wav\)"):
        data(tmp_path / "c", tmp_path, **lists)


def test_features_lie_at_the_path_of_their_clip(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c" / "wavs", samples=1024)
    folder = tmp_path / "features"
    for place, path in enumerate(files.find_audio_files(tmp_path / "c")):
        target = (folder / path.relative_to(tmp_path / "c")).with_suffix(".npy")
        target.parent.mkdir(parents=True, exist_ok=True)
        np.save(target, np.full((3, 16), float(place), np.float32))
    module = data(tmp_path / "c", tmp_path, features=str(folder), feature_hop_samples=64)
    assert [float(module.train_set[0, item]["features"][0, 0]) for item in range(3)] == [0.0, 1.0, 2.0]


def test_flat_features_need_unique_stems(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c", samples=1024)
    (tmp_path / "flat").mkdir()
    for stem in "12":
        np.save(tmp_path / "flat" / f"{stem}.npy", np.zeros((3, 16), np.float32))
    with pytest.raises(FileNotFoundError, match=r"5 of 5 clips .*/a/1\.npy does not exist .* called 1\)"):
        data(tmp_path / "c", tmp_path, features=str(tmp_path / "flat"), feature_hop_samples=64)


@pytest.mark.parametrize("shape", [(3, 8), (3, 32), (16, 3)])
def test_features_must_fit_the_audio(tmp_path: Path, shape: tuple[int, int]) -> None:
    write_speakers(tmp_path / "c", samples=1024)
    for path in files.find_audio_files(tmp_path / "c"):
        np.save(path.with_suffix(".npy"), np.zeros((3, 16), np.float32))
    np.save(tmp_path / "c" / "b" / "1.npy", np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=r"1 of 5 clips .*b/1\.npy.*, 16\)"):
        data(tmp_path / "c", tmp_path, features=str(tmp_path / "c"), feature_hop_samples=64)


def test_features_must_fit_the_net(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c", samples=1024)
    for path in files.find_audio_files(tmp_path / "c"):
        np.save(path.with_suffix(".npy"), np.zeros((3, 16), np.float32))
    module = VocoderData(
        root=str(tmp_path / "c"), sample_rate=RATE, segment_samples=512, val_items=2, cache=str(tmp_path / "cache"),
        features=str(tmp_path / "c"), feature_hop_samples=64,
    )  # fmt: skip
    module.prepare_data()
    for channels, rates, message in ((3, (8, 8), None), (4, (8, 8), r"\(4, 16\)"), (3, (8, 4), "is 64, expected 32")):
        kernels = [2 * rate for rate in rates]
        generator = Generator(channels, 8, rates, kernels, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1,),))
        module.trainer = SimpleNamespace(lightning_module=SimpleNamespace(generator=generator))
        if message is None:
            module.setup("fit")
        else:
            with pytest.raises(ValueError, match=message):
                module.setup("fit")


def test_features_must_be_finite(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c", samples=1024)
    for path in files.find_audio_files(tmp_path / "c"):
        np.save(path.with_suffix(".npy"), np.full((3, 16), np.nan, np.float32))
    module = data(tmp_path / "c", tmp_path, features=str(tmp_path / "c"), feature_hop_samples=64)
    for read in (lambda: module.train_set[0, 0], lambda: module.val_set[0]):
        with pytest.raises(ValueError, match=r"\.npy: NaN or infinite"):
            read()


def test_clips_shorter_than_a_frame_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_speakers(tmp_path / "c", samples=1024)
    for name in ("a/0", "e/1"):
        files.write(tmp_path / "c" / f"{name}.wav", np.full(63, 0.1, np.float32), RATE)
    for path in files.find_audio_files(tmp_path / "c"):
        np.save(path.with_suffix(".npy"), np.zeros((3, 16), np.float32))
    module = data(tmp_path / "c", tmp_path, features=str(tmp_path / "c"), feature_hop_samples=64)
    assert names_of(module.train_set) == ["a/1.wav", "a/2.wav", "b/1.wav", "b/2.wav"]
    assert names_of(module.val_set) == ["d/1.wav"]
    assert "a/0.wav" in caplog.text and "e/1.wav" in caplog.text


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
