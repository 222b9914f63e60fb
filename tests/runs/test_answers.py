"""What each system declares and answers, on the runs that stand in the repository."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.harness import REPOSITORY
from zoo.audio.inference import MAX_RECORDING_SECONDS
from zoo.audio.io import files
from zoo.runs.inference.forms import FILE_OUTPUTS, InputField, Output, read_form

RUNS = sorted(path.parent for path in REPOSITORY.glob("tests/data/runs/*/*/config.yaml"))
RATE = 16000


def tone(path: Path, seconds: float = 1.0) -> Path:
    """A tone below 2 kHz and noise below 3 kHz: its band ends there."""
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE))
    spectrum = np.fft.rfft(noise)
    spectrum[int(len(spectrum) * 3000 / (RATE / 2)) :] = 0
    files.write(path, 0.1 * np.fft.irfft(spectrum, len(noise)), RATE)
    return path


def ask(run: Path, folder: Path, **given):
    """The facts by kind of an answer, as they cross into another process and back."""
    inference = zoo.load(run)
    declared = tuple(InputField(**json.loads(json.dumps(asdict(field)))) for field in inference.fields())
    assert declared == inference.fields()
    values = {}
    for field in declared:
        if field.name == "input":
            example = inference.write_example(folder / "example")
            values["input"] = tone(folder / "tone.wav") if field.kind == "audio" else example
        elif field.kind == "text" and not field.optional:
            values[field.name] = "How much is 3 + 4?"
    values |= given
    answer, told = folder / "answer", []
    answer.mkdir(exist_ok=True)
    parts = inference.answer(read_form(declared, values), answer, lambda done, text: told.append((done, text)))
    assert told
    assert all(0 <= done <= 1 and text for done, text in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    for part in parts:
        assert Output(**json.loads(json.dumps(asdict(part), allow_nan=False))) == part
        if part.kind in FILE_OUTPUTS:
            assert (answer / part.name).stat().st_size > 0
        if part.kind in ("image", "animation"):
            Image.open(answer / part.name).verify()
        if part.kind == "audio":
            assert files.info(answer / part.name).samples > 0
    return parts


def run_of(name: str) -> Path:
    (found,) = (run for run in RUNS if "/".join(run.parts[-2:]) == name)
    return found


def kinds(parts):
    return [part.kind for part in parts]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "/".join(run.parts[-2:]))
def test_every_system_answers_with_its_defaults(run, tmp_path):
    parts = ask(run, tmp_path)
    assert kinds(parts)[0] in ("audio", "image", "animation", "text")
    assert "table" in kinds(parts)


def test_restored_audio_stands_beside_its_input_with_its_options(tmp_path):
    given = {"cutoff_hz": 3000.0, "steps": 2, "guidance_scale": 1, "seed": 4}
    parts = ask(run_of("audiosr/smoke"), tmp_path, **given)
    assert kinds(parts) == ["audio", "audio", "image", "table"]
    assert {part.group for part in parts[:2]} == {"listen"}
    facts = dict(parts[-1].data["rows"])
    assert facts["cutoff hz"] == 3000
    assert facts["cutoff"] == "given"
    assert facts["restored"] is True
    first = files.read(tmp_path / "answer" / "result.wav")[0]
    ask(run_of("audiosr/smoke"), tmp_path, **given)
    np.testing.assert_array_equal(files.read(tmp_path / "answer" / "result.wav")[0], first)
    ask(run_of("audiosr/smoke"), tmp_path, **given | {"seed": 5})
    assert not np.array_equal(files.read(tmp_path / "answer" / "result.wav")[0], first)


def test_defaults_restore_as_bulk_prediction_does(tmp_path):
    ask(run_of("audiosr/smoke"), tmp_path)
    inference = zoo.load(run_of("audiosr/smoke"), pictures=False)
    inference.process_file(tmp_path / "tone.wav", tmp_path / "bulk.wav")
    assert (tmp_path / "bulk.wav").read_bytes() == (tmp_path / "answer" / "result.wav").read_bytes()


def test_defaults_of_a_vocoder_are_bulk_predictions(tmp_path):
    run = run_of("miipher/smoke_finetune")
    ask(run, tmp_path)
    inference = zoo.load(run)
    target = tmp_path / f"bulk{inference.output_suffix}"
    inference.process_file(tmp_path / "tone.wav", target)
    assert target.read_bytes() == (tmp_path / "answer" / f"result{inference.output_suffix}").read_bytes()


def test_long_recordings_are_for_bulk_prediction(tmp_path):
    long = tone(tmp_path / "long.wav", MAX_RECORDING_SECONDS + 1)
    with pytest.raises(ValueError, match="61 seconds, at most 60"):
        ask(run_of("hifigan/smoke"), tmp_path, input=long)


def test_images_of_chosen_classes(tmp_path):
    given = {"classes": ["2", "5"], "count": 3, "steps": 3}
    parts = ask(run_of("flow/smoke"), tmp_path, **given, seed=1, method="euler", guidance=1)
    assert kinds(parts) == ["image", "animation", "table"]
    with Image.open(tmp_path / "answer" / "way.gif") as way:
        assert way.n_frames == 4  # the noise and three steps
    assert dict(parts[-1].data["rows"]) == {"samples": 3, "evaluations of the net": 3}
    first = (tmp_path / "answer" / "samples.png").read_bytes()
    ask(run_of("flow/smoke"), tmp_path, **given, seed=2, animation=False)
    assert (tmp_path / "answer" / "samples.png").read_bytes() != first


def test_points_with_their_way(tmp_path):
    parts = ask(run_of("flow/points"), tmp_path, count=50, steps=3)
    assert kinds(parts) == ["image", "animation", "file", "table"]
    assert np.load(tmp_path / "answer" / "samples.npy").shape == (50, 2)


def test_a_given_goal_is_played_for(tmp_path):
    parts = ask(run_of("compressed_ad/smoke"), tmp_path, task_0=1, task_1=3, rooms=1, episodes=3, horizon=5, hard=True)
    assert kinds(parts) == ["animation", "chart", "table"]
    curves = parts[1].data["curves"]
    assert curves.keys() == {"room 1", "oracle", "informed explorer", "random"}
    assert [x for x, _ in curves["room 1"]] == [1, 2, 3]
    assert curves["oracle"][0][1] == 1  # pays once
    assert dict(parts[2].data["rows"])["goal of room 1"] == "1, 3"
    with Image.open(tmp_path / "answer" / "replay.gif") as replay:
        assert replay.n_frames <= 6


def test_a_drawn_goal_depends_on_the_seed_alone(tmp_path):
    def goals(seed):
        parts = ask(run_of("compressed_ad/smoke"), tmp_path, split="all", rooms=4, episodes=1, seed=seed)
        return [row for name, row in parts[2].data["rows"] if name.startswith("goal")]

    assert goals(1) == goals(1)
    assert len(goals(1)) == 4
    assert goals(1) != goals(2)


def test_agents_answer_beside_the_crowd(tmp_path):
    given = {"max_new_tokens": 5, "temperature": 1.0, "seed": 3, "history": "2 + 2 is 4"}
    parts = ask(run_of("ci_llm/smoke"), tmp_path, **given)
    assert [part.title for part in parts[:3]] == ["Crowd", "Agent 1", "Agent 2"]
    assert {part.group for part in parts[:3]} == {"answers"}
    agreement, likelihood = parts[3:]
    assert agreement.data["rows"][-1][0].startswith("Divergence")
    assert likelihood.data["columns"] == ["Answer of", "the mean", "Agent 1", "Agent 2"]
    assert all(value < 0 for row in likelihood.data["rows"] for value in row[1:])
    assert [part.data for part in ask(run_of("ci_llm/smoke"), tmp_path, **given)] == [part.data for part in parts]


def together_and_alone(run: Path, folder: Path, asked, with_figures=True):
    """The answers to all at once, and to each alone, as (parts or error, folder)."""
    inference = zoo.load(run)
    inference.with_figures = with_figures
    found = {}
    for way in ("together", "alone"):
        folders = [folder / way / str(number) for number in range(len(asked))]
        for each in folders:
            each.mkdir(parents=True)
        given = [(read_form(inference.fields(), values), each) for values, each in zip(asked, folders, strict=True)]
        calls = [given] if way == "together" else [[each] for each in given]
        parts = [part for call in calls for part in inference.answer_batch(call, lambda done, text: None)]
        found[way] = list(zip(parts, folders, strict=True))
    return found["together"], found["alone"]


def test_samples_drawn_together_are_those_drawn_alone(tmp_path):
    asked = [{"count": count, "seed": seed, "steps": 3, "animation": False}
             for seed, count in enumerate((3, 5, 40, 40, 7, 100))]  # fmt: skip
    asked += [{"count": 4, "method": "dopri5", "animation": False, "seed": seed} for seed in (0, 1)]
    for both in zip(*together_and_alone(run_of("flow/points"), tmp_path, asked), strict=True):
        (parts, folder), (alone, beside) = both
        assert parts == alone
        drawn, one = (np.load(each / "samples.npy") for each in (folder, beside))
        np.testing.assert_allclose(drawn, one, rtol=0, atol=1e-6)
    together, alone = together_and_alone(
        run_of("flow/smoke"), tmp_path / "images", [{"count": 2, "steps": 2, "seed": seed} for seed in range(3)]
    )
    for (parts, folder), (_, beside) in zip(together, alone, strict=True):
        assert [part.name for part in parts[:2]] == ["samples.png", "way.gif"]
        pixels = [np.asarray(Image.open(each / "samples.png"), int) for each in (folder, beside)]
        assert np.abs(pixels[0] - pixels[1]).max() <= 1  # of 255: where rounding decides
        assert Image.open(folder / "way.gif").n_frames == Image.open(beside / "way.gif").n_frames


def test_recordings_vocoded_together_are_those_vocoded_alone(tmp_path):
    """Lengths below and beyond the window, equal and not; stereo; one that is torn fails alone."""
    seconds = (0.5, 0.5, 0.3, 5.0, 5.0, 6.2)
    sources = [tone(tmp_path / f"{number}.wav", each) for number, each in enumerate(seconds)]
    audio, _ = files.read(sources[0])
    files.write(tmp_path / "stereo.wav", np.concatenate([audio, -audio]), RATE)
    (tmp_path / "torn.wav").write_bytes(b"RIFF nothing")
    sources += [tmp_path / "stereo.wav", tmp_path / "torn.wav", tone(tmp_path / "long.wav", MAX_RECORDING_SECONDS + 1)]
    requests = [{"input": source} for source in sources]
    both = together_and_alone(run_of("hifigan/smoke"), tmp_path, requests, with_figures=False)
    for (parts, folder), (alone, beside) in zip(*both, strict=True):
        if isinstance(alone, Exception):
            assert str(parts) == str(alone)
            continue
        assert parts == alone and [part.kind for part in parts] == ["audio", "table"]
        assert sorted(path.name for path in folder.iterdir()) == ["result.wav"]
        drawn, one = (files.read(each / "result.wav")[0] for each in (folder, beside))
        assert np.abs(drawn - one).max() <= 2**-15  # a step of 16 bits, where rounding decides
    vocoder = zoo.load(run_of("hifigan/smoke"))
    several = np.concatenate([audio, -audio, 0.5 * audio])
    apart = np.stack([vocoder(each, RATE) for each in several])
    np.testing.assert_allclose(vocoder(several, RATE), apart, rtol=0, atol=1e-6)
    assert [str(number) for number, (parts, _) in enumerate(both[0]) if isinstance(parts, Exception)] == ["7", "8"]
