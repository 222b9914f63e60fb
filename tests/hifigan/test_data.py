import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from zoo.audio.corpora.corpus import CorpusOptions, corpus_files
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.hifigan.data import FeatureOptions, ValidationSplit, VocoderData
from zoo.hifigan.nets.generator import Generator

RATE, HOP = 8000, 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    speech = SyntheticSpeech(RATE, seconds=(0.5, 0.8))
    for index in range(6):
        files.write(root / "wavs" / f"clip{index}.wav", speech.utterance(index), RATE)
    return root


def data(
    root: Path | None, tmp_path: Path, features: Path | None = None, generator: Generator | None = None, **split: object
) -> VocoderData:
    module = VocoderData(
        None if root is None else str(root), RATE, 512, ValidationSplit(**{"items": 2, **split}),
        FeatureOptions(None if features is None else str(features), HOP),
        CorpusOptions(str(tmp_path / "cache"), embedded_if_missing=True, embedded_utterances=4), batch_size=2,
    )  # fmt: skip
    if generator is not None:
        module.trainer = SimpleNamespace(lightning_module=SimpleNamespace(generator=generator))
    module.prepare_data()
    module.setup("fit")
    return module


def write_speakers(root: Path) -> None:
    for place, name in enumerate(("a/1", "a/2", "b/1", "b/2", "d/1")):
        files.write(root / f"{name}.wav", np.full(16 * HOP, 0.1 * (place + 1), np.float32), RATE)


def test_crops_are_scaled_and_keyed(corpus: Path, tmp_path: Path) -> None:
    module = data(corpus, tmp_path)
    assert (len(module.train_set), len(module.val_set)) == (4, 2)
    crop = module.train_set[0, 1]["audio"]
    assert crop.shape == (512,)
    assert torch.equal(crop, module.train_set[0, 1]["audio"])
    assert not torch.equal(crop, module.train_set[1, 1]["audio"])
    assert module.val_set[0]["audio"].abs().max() == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize("level", [0.5, 0.0])
def test_short_clip_is_padded_and_silence_stays_silence(tmp_path: Path, level: float) -> None:
    for index in range(3):
        files.write(tmp_path / "c" / f"{index}.wav", np.full(100, level, np.float32), RATE)
    crop = data(tmp_path / "c", tmp_path).train_set[0, 0]["audio"]
    assert crop[:100].min() > 0.9 if level else torch.all(crop == 0)
    assert torch.all(crop[100:] == 0)


@pytest.mark.parametrize("shape", ["(C, F)", "(1, C, F)"])
def test_features_are_cut_along(corpus: Path, tmp_path: Path, shape: str) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    for path in files.find_audio_files(corpus):
        frames = files.info(path).samples // HOP + 1  # centred mels have one frame more than the audio
        values = np.tile(np.arange(frames, dtype=np.float32), (3, 1))
        np.save(folder / f"{path.stem}.npy", values if shape == "(C, F)" else values[None])
    module = data(corpus, tmp_path, folder)
    item = module.train_set[0, 0]
    assert item["features"].shape == (3, 8)
    start = int(item["features"][0, 0]) * HOP
    expected = module.train_set.corpus.read(int(module.train_set.indices[0]), start, 512)
    np.testing.assert_array_equal(item["audio"].numpy(), expected)
    clip = module.val_set[0]
    assert clip["features"].shape[1] * HOP == len(clip["audio"])


def test_lists_of_other_projects(corpus: Path, tmp_path: Path) -> None:
    lists = {
        "ids": "\ufeffclip0|text\nclip1|te\u2028xt\n",
        "paths": "wavs/clip0.wav\r\nwavs/clip1.wav\r\n",
        "jsonl": "".join(json.dumps({"path": f"clip{i}.wav"}) + "\n" for i in range(2)),
    }
    expected = [corpus / "wavs" / "clip0.wav", corpus / "wavs" / "clip1.wav"]
    for name, text in lists.items():
        (tmp_path / name).write_text(text, newline="")
        assert corpus_files(corpus, (str(tmp_path / name), None)) == expected
    (tmp_path / "val").write_text("clip5|x\n")
    module = data(corpus, tmp_path, train_list=str(tmp_path / "ids"), val_list=str(tmp_path / "val"))
    assert (len(module.train_set), len(module.val_set)) == (2, 1)


def test_features_lie_at_the_path_of_their_clip(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c" / "wavs")
    folder = tmp_path / "features"
    for place, path in enumerate(files.find_audio_files(tmp_path / "c")):
        target = (folder / path.relative_to(tmp_path / "c")).with_suffix(".npy")
        target.parent.mkdir(parents=True, exist_ok=True)
        np.save(target, np.full((3, 16), float(place), np.float32))
    module = data(tmp_path / "c", tmp_path, folder)
    assert [float(module.train_set[0, item]["features"][0, 0]) for item in range(3)] == [0.0, 1.0, 2.0]
    (folder / "wavs/a/1.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 clips .*/a/1\.npy"):
        data(tmp_path / "c", tmp_path, folder)


def test_features_must_fit_audio_and_net(tmp_path: Path) -> None:
    write_speakers(tmp_path / "c")
    for path in files.find_audio_files(tmp_path / "c"):
        np.save(path.with_suffix(".npy"), np.zeros((3, 16), np.float32))
    for channels, rates, message in ((4, (8, 8), r"\(4, 16\)"), (3, (8, 4), "is 64, expected 32")):
        kernels = [2 * rate for rate in rates]
        generator = Generator(channels, 8, rates, kernels, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1,),))
        with pytest.raises(ValueError, match=message):
            data(tmp_path / "c", tmp_path, tmp_path / "c", generator)
    for shape in ((3, 8), (3, 32), (16, 3)):
        np.save(tmp_path / "c" / "b" / "1.npy", np.zeros(shape, np.float32))
        with pytest.raises(ValueError, match=r"1 clips .*b/1\.npy.*, 16\)"):
            data(tmp_path / "c", tmp_path, tmp_path / "c")


def test_missing_corpus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(data(tmp_path / "absent", tmp_path).train_set) == 2
    assert "embedded" in caplog.text
    for match, make in (
        ("ZOO_DATA", lambda: VocoderData(root=str(tmp_path / "absent"))),
        ("train_list", lambda: VocoderData(root=None, split=ValidationSplit(train_list="absent.txt"))),
        ("segment_samples", lambda: VocoderData(segment_samples=1000, features=FeatureOptions("x", 256))),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            make()
    for name in ("high", "low"):
        (tmp_path / "pairs" / "train" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"name .*/pairs/train/high"):
        VocoderData(root=str(tmp_path / "pairs")).prepare_data()
