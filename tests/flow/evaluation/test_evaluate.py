import json

import numpy as np
import pytest
import torch

from zoo.flow import rendering
from zoo.flow.data.images import Framing
from zoo.flow.evaluation import digits_classifier
from zoo.flow.evaluation import evaluate as evaluation
from zoo.flow.evaluation.evaluate import evaluate, frechet_interval
from zoo.flow.evaluation.metrics import frechet_distance
from zoo.flow.evaluation.references import build_quality, read_sets
from zoo.flow.evaluation.samples import SampleSet


def digits_file(path, count=60, side=8):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, side, side), dtype=np.uint8)
    np.savez(path, images=pixels, labels=1 + np.arange(count) % 10)
    return path


def values(report):
    return {row["figure"]: row for row in report["rows"]}


def test_digits_leave_a_report(tmp_path, monkeypatch, capsys, caplog):
    # two passes over the digits instead of forty
    monkeypatch.setattr(digits_classifier.train_digits_classifier, "__defaults__", (0, 2))
    source = digits_file(tmp_path / "g.npz")
    report = evaluate(source, tmp_path / "out", cache=tmp_path / "cache")
    rows = values(report)
    assert list(rows) == ["frechet", "accuracy", "std_ratio", "nearest", "nearest_ratio"]
    assert rows["frechet"]["samples"] == 60 and rows["frechet"]["value"] > 0 and rows["nearest_ratio"]["value"] > 0
    assert rows["accuracy"]["low"] <= rows["accuracy"]["value"] <= rows["accuracy"]["high"]
    assert "60 samples and 176 real images in 64 dimensions" in caplog.text
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"] == report["rows"]
    assert len((tmp_path / "out" / "evaluation.csv").read_text().splitlines()) == 1 + len(rows)
    assert "frechet" in capsys.readouterr().out
    assert list((tmp_path / "cache" / "features").iterdir())


def test_images_without_labels_are_compared_in_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(a, images=pixels)
    np.savez(b, images=pixels[:20])
    rows = values(evaluate(a, tmp_path / "out", b, b, extractor="pixels", cache=None))
    assert list(rows) == ["frechet", "nearest", "nearest_ratio"]
    assert rows["nearest"]["samples"] == 30 and rows["nearest"]["reference"] == 20


def statistics_file(path, features):
    np.savez(path, mu=features.double().mean(0).numpy(), sigma=features.T.double().cov().numpy())
    return path


@pytest.mark.parametrize("resize", ["crop", None])
def test_real_images_are_read_as_those_of_the_training(tmp_path, resize):
    wide = np.random.default_rng(0).integers(0, 256, (20, 4, 12, 3), dtype=np.uint8)
    for folder, pixels in (("samples", wide[:, :, 4:8]), ("real", wide)):
        for number, each in enumerate(pixels):
            rendering.write_png(tmp_path / folder / f"{number}.png", each)
    rows = "".join(f"{number}.png,0\n" for number in range(20))
    (tmp_path / "samples" / "labels.csv").write_text(f"file,label\n{rows}")
    (tmp_path / "samples" / "settings.json").write_text(json.dumps({"resize": resize, "background": [255, 255, 255]}))
    source, real = tmp_path / "samples", tmp_path / "real"
    report = evaluate(source, tmp_path / "out", real, extractor="pixels", cache=None)
    assert (values(report)["frechet"]["value"] < 1e-3) == (resize == "crop")


def test_statistics_are_a_reference_of_the_frechet_distance(tmp_path):
    torch.manual_seed(0)
    source = digits_file(tmp_path / "a.npz", 40, 2)
    reference = statistics_file(tmp_path / "b.npz", torch.randn(50, 4))
    report = evaluate(source, tmp_path / "out", reference, extractor="pixels", cache=None)
    (row,) = report["rows"]
    assert row["figure"] == "frechet" and (row["samples"], row["reference"]) == (40, None)
    assert row["low"] < row["value"] < row["high"]
    assert "mean and covariance" in report["notes"][0]


def test_interval_covers_other_draws_about_as_often_as_it_states():
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(400, 2, generator=generator)
    truth = 1.0  # a shift by (1, 0), whose noise is larger than bias and the real set's own draw
    hits = 0
    for _ in range(40):
        fake = torch.randn(200, 2, generator=generator) + torch.tensor([1.0, 0.0]) + real.mean(dim=0)
        value, low, high = frechet_interval(real, fake)
        assert value == pytest.approx(frechet_distance(real, fake))
        hits += low <= truth <= high
    assert 32 <= hits <= 40
    assert all(np.isnan(frechet_interval(real, real[:19])[1:]))


def test_mistakes_are_named(tmp_path):
    source = digits_file(tmp_path / "g.npz")
    statistics = statistics_file(tmp_path / "s.npz", torch.randn(5, 2))
    for options, message in (
        ({"extractor": "fid"}, "needs its file: give --weights"),
        ({"train": source}, "--train without --reference"),
        ({"reference": source}, "give --train, or another extractor"),
        ({"reference": statistics, "extractor": "pixels"}, "2 features, the extractor gives 64"),
        ({"resolution": 32}, "at most 16 pixels, found 32"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(source, tmp_path / "out", **options, cache=None)
    assert not (tmp_path / "out").exists()


def test_other_classes_are_refused(tmp_path):
    folder = tmp_path / "samples"
    for name in ("cat", "dog"):
        rendering.write_png(tmp_path / "real" / name / "0.png", np.zeros((4, 4, 3), np.uint8))
    rendering.write_png(folder / "0.png", np.zeros((4, 4, 3), np.uint8))
    (folder / "labels.csv").write_text("file,label\n0.png,1\n")
    (folder / "settings.json").write_text('{"classes": ["bird", "cat"]}')
    with pytest.raises(ValueError, match="different classes: bird, cat; cat, dog"):
        evaluate(folder, tmp_path / "out", tmp_path / "real", extractor="pixels", cache=None)
    with pytest.raises(ValueError, match="different classes"):
        build_quality((3, 4, 4), reference=tmp_path / "real", extractor="pixels", classes=["bird", "cat"])
    read_sets(tmp_path / "real", None, Framing(4, 3), 10, None, ["1", "2"])  # as pairs call classes without names


def test_uneven_classes_are_reported():
    pixels = np.zeros((100, 1, 1, 1), np.uint8)
    one, other = (SampleSet(pixels, labels) for labels in ([1, 2] * 50, [1] * 60 + [2] * 40))
    assert evaluation.comparison_warnings(one, one, 1) == []
    assert "differs by 10.0%" in evaluation.comparison_warnings(other, one, 1)[0]
