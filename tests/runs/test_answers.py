"""What each system's form returns, on the runs that stand in the repository."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.harness import RUNS
from zoo.audio.inference import MAX_RECORDING_SECONDS
from zoo.audio.io import files
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import FILE_OUTPUTS, InputField, Output, read_form

ALL = sorted(path.parent for path in RUNS.glob("*/*/config.yaml"))
RATE = 16000


def write_sound(path: Path, seconds: float = 1.0) -> Path:
    """Noise below 3 kHz: its band ends there."""
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE))
    spectrum = np.fft.rfft(noise)
    spectrum[int(len(spectrum) * 3000 / (RATE / 2)) :] = 0
    files.write(path, 0.1 * np.fft.irfft(spectrum, len(noise)), RATE)
    return path


def request(inference: Inference, folder: Path, **entered: Any) -> list[Output]:
    """The results of a form; fields and outputs pass through JSON, as to and from another process."""
    fields = tuple(InputField(**json.loads(json.dumps(asdict(field)))) for field in inference.fields())
    assert fields == inference.fields()
    values: dict[str, Any] = {}
    for field in fields:
        if field.name == "input":
            sound = field.kind == "audio"
            values["input"] = write_sound(folder / "tone.wav") if sound else inference.write_example(folder / "example")
        elif field.kind == "text" and not field.optional:
            values[field.name] = "How much is 3 + 4?"
    answer = folder / "answer"
    answer.mkdir()
    reports: list[tuple[float, str]] = []
    outputs = inference.answer(read_form(fields, values | entered), answer, lambda *report: reports.append(report))
    assert [share for share, _ in reports] == sorted(share for share, _ in reports) and reports[-1][0] <= 1
    for output in outputs:
        assert Output(**json.loads(json.dumps(asdict(output), allow_nan=False))) == output
        if output.kind in FILE_OUTPUTS:
            assert (answer / output.name).stat().st_size > 0
        if output.kind in ("image", "animation"):
            Image.open(answer / output.name).verify()
        if output.kind == "audio":
            assert files.info(answer / output.name).samples > 0
    return outputs


@pytest.mark.parametrize("run", ALL, ids=lambda run: "/".join(run.parts[-2:]))
def test_every_system_answers(run: Path, tmp_path: Path) -> None:
    kinds = [output.kind for output in request(zoo.load(run), tmp_path)]
    assert kinds[0] in ("audio", "image", "animation", "text")
    assert "table" in kinds


@pytest.mark.parametrize("name", ["audiosr/smoke", "miipher/smoke_finetune"])
def test_defaults_equal_prediction_over_files(name: str, tmp_path: Path) -> None:
    inference = zoo.load(RUNS / name)
    request(inference, tmp_path)
    target = tmp_path / f"bulk{inference.output_suffix}"
    inference.process_file(tmp_path / "tone.wav", target)
    assert target.read_bytes() == (tmp_path / "answer" / f"result{inference.output_suffix}").read_bytes()


def test_long_recordings_are_refused(tmp_path: Path) -> None:
    long = write_sound(tmp_path / "long.wav", MAX_RECORDING_SECONDS + 1)
    with pytest.raises(ValueError, match="61 seconds, at most 60"):
        request(zoo.load(RUNS / "hifigan/smoke"), tmp_path, input=long)


def test_batched_samples_equal_single_ones(tmp_path: Path) -> None:
    entered: list[dict[str, Any]] = [
        {"count": count, "seed": seed, "steps": 3, "animation": False} for seed, count in enumerate((3, 40, 40, 100))
    ]
    entered += [{"count": 4, "method": "dopri5", "animation": False, "seed": seed} for seed in (0, 1)]
    inference = zoo.load(RUNS / "flow/points")
    forms = [read_form(inference.fields(), values) for values in entered]
    folders = [[tmp_path / way / str(number) for number in range(len(forms))] for way in ("batch", "single")]
    for folder in (*folders[0], *folders[1]):
        folder.mkdir(parents=True)
    calls: list[int] = []
    hook = inference.net.register_forward_pre_hook(lambda net, inputs: calls.append(len(inputs[0])))
    batch = inference.answer_batch(list(zip(forms[:4], folders[0][:4], strict=True)), lambda share, text: None)
    assert calls == [183] * 3  # all samples together, in three Euler steps
    hook.remove()
    batch += inference.answer_batch(list(zip(forms[4:], folders[0][4:], strict=True)), lambda share, text: None)
    for form, outputs, folder, other in zip(forms, batch, *folders, strict=True):
        assert outputs == inference.answer(form, other, lambda share, text: None)
        samples, expected = (np.load(each / "samples.npy") for each in (folder, other))
        np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-6)
