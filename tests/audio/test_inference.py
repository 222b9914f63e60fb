"""What every system that takes audio does with arrays and files: shapes, types, lengths, memory."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from scripts.bench.tools import peak_memory
from tests.audio.signals import noise
from tests.audiosr.inference.test_restore import restorer as audiosr_restorer
from tests.audiosr.task_parts import AUTOENCODER, features
from tests.hifigan.test_inference import build as vocoder
from tests.miipher.stand_ins import LocalEncoder
from tests.miipher.stand_ins import restorer as miipher_restorer
from tests.miipher.stand_ins import vocoder as feature_vocoder
from zoo.audio.inference import as_audio
from zoo.audio.io import files
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.inference.reconstruct import Reconstructor
from zoo.audiosr.samplers import DPMSolver
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.miipher.inference.features import FeatureExtractor
from zoo.miipher.inference.restorer import Restorer
from zoo.runs.export import AUDIO_USAGE
from zoo.runs.inference.base import Inference

SYSTEMS: dict[str, Callable[[], Inference]] = {
    "vocoder": vocoder,
    "miipher": miipher_restorer,
    "miipher features": lambda: FeatureExtractor(LocalEncoder()),
    "audiosr": lambda: audiosr_restorer(cutoff_hz=None),
    "audiosr autoencoder": lambda: Reconstructor(AutoencoderKL(**AUTOENCODER).eval(), features()),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_systems_take_audio_by_one_rule(name: str) -> None:
    model = SYSTEMS[name]()
    with pytest.raises(ValueError, match=r"4000 channels of 2 samples; pass audio\.T"):
        model(noise(4000, 2), 16000)
    for audio in (np.zeros((1, 2, 9)), np.zeros(0), np.full(9, np.nan)):
        with pytest.raises(ValueError, match="expected finite audio"):
            model(audio, 16000)
    with pytest.raises(ValueError, match="found int64"):
        model(np.zeros(9, np.int64), 16000)
    with pytest.raises(ValueError, match="sample rate in Hz above 0, found 0"):
        model(noise(9), 0)
    samples = np.round(2**15 * noise(2, 4000)).astype(np.int16)
    np.testing.assert_array_equal(model(samples, 16000), model(samples / np.float32(2**15), 16000))


@pytest.mark.parametrize("name", SYSTEMS)
def test_one_sample_does_not_fail(name: str, tmp_path: Path) -> None:
    model, rate = SYSTEMS[name](), 8000
    result = model(noise(1), rate)
    assert result.size and np.isfinite(result).all()
    files.write(tmp_path / "in.wav", noise(2, 1), rate)
    model.process_file(tmp_path / "in.wav", tmp_path / f"out{model.output_suffix}")
    assert (tmp_path / f"out{model.output_suffix}").is_file()


in_chunks = partial(miipher_restorer, chunk_seconds=1.0, overlap_seconds=0.4)


@pytest.mark.parametrize(
    ("make", "rate", "samples", "expected"),
    [
        *((vocoder, 8000, n, n) for n in (15, 1601)),
        *((audiosr_restorer, 16000, n, n) for n in (639, 640, 641)),
        *((audiosr_restorer, rate, n, math.ceil(n * 16000 / rate)) for n, rate in ((1, 44100), (30_001, 7919))),
        *(
            (partial(in_chunks, output_sample_rate=out), rate, n, round(n * (out or 8000) / rate))
            for n in (319, 321, 99_999)
            for rate, out in ((16000, None), (48000, 22050), (7919, 48000))
        ),
    ],
)
def test_the_length_is_exact(make: Callable[[], Inference], rate: int, samples: int, expected: int) -> None:
    model, channels = make(), min(samples, 3)
    assert model(noise(samples), rate).shape == (expected,)
    assert model(noise(channels, samples), rate).shape == (channels, expected)


# what a file gives besides its audio's length, rate and channels
FILES: dict[str, tuple[Callable[[], Inference], dict[str, object]]] = {
    "vocoder": (vocoder, {}),
    "miipher": (partial(in_chunks, output_sample_rate=24000), {"chunks": 5}),
    "audiosr": (
        partial(audiosr_restorer, pictures=True),
        {"cutoff": "given", "cutoff_hz": 3000, "picture": "out.png"},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_what_its_array_gives(name: str, tmp_path: Path) -> None:
    make, expected = FILES[name]
    model, audio = make(), noise(2, 70_001)
    files.write(tmp_path / "in.wav", audio, 22050, "FLOAT")
    facts = model.process_file(tmp_path / "in.wav", tmp_path / "out.wav")
    written, rate = files.read(tmp_path / "out.wav")
    np.testing.assert_allclose(written, model(audio, 22050), atol=1 / 32768)
    required = {**expected, "audio_seconds": written.shape[1] / rate, "sample_rate": rate, "channels": 2}
    assert {key: facts[key] for key in required} == required
    assert {path.name for path in tmp_path.iterdir()} == {"in.wav", "out.wav", expected.get("picture", "out.wav")}


def test_integers_are_at_full_scale_of_their_type() -> None:
    integers = {"int16": [-(2**15), 2**14], "int32": [-(2**31), 2**30], "uint8": [0, 192], "int8": [-128, 64]}
    for kind, values in integers.items():
        np.testing.assert_array_equal(as_audio(np.array(values, kind), 1), [-1, 0.5])
    assert as_audio(noise(3).astype(np.float16), 1).dtype == np.float32
    assert as_audio(noise(1, 1), 1).shape == (1, 1)


def test_the_snippet_of_the_model_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "input.wav", noise(8000, 2), 16000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.load", lambda folder: miipher_restorer())
    space: dict[str, np.ndarray] = {}
    exec(AUDIO_USAGE, space)
    assert space["result"].shape == (2, 4000)


few_steps = partial(audiosr_restorer, cutoff_hz=None, guidance_scale=1.0, sampler=DPMSolver(1), chunk_seconds=4.0)
LONG: dict[str, tuple[Callable[[], Inference], int, int]] = {  # how it is built, rates of input and result in Hz
    "vocoder": (vocoder, 8000, 8000),
    "miipher": (lambda: Restorer(LocalEncoder(), feature_vocoder(channels=64), 8000).eval(), 16000, 8000),
    "audiosr": (partial(few_steps, pictures=True), 16000, 16000),
}


def process(name: str, source: Path, target: Path) -> None:
    LONG[name][0]().process_file(source, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_an_hour_takes_no_more_memory_than_a_minute(name: str, tmp_path: Path) -> None:
    _, rate, result_rate = LONG[name]
    peaks = {}
    for minutes in (1, 60):
        with files.AudioWriter(tmp_path / "in.wav", rate, 1) as writer:
            for index in range(minutes):
                writer.write(lowpass(noise(60 * rate), rate, 3000.0 + index))
        _, peaks[minutes] = peak_memory(process, name, tmp_path / "in.wav", tmp_path / "out.wav")
        assert files.info(tmp_path / "out.wav").samples == minutes * 60 * result_rate
    assert peaks[60] <= 1.3 * peaks[1], peaks
