import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.flow.conditions import Shade
from tests.harness import contents
from zoo.cli.main import main
from zoo.flow import ConditionalOT, Guidance, Sampler, Solver, ToyNet, UNet, VelocityNet
from zoo.flow.inference.generate import generate as generate_folder
from zoo.flow.inference.request_files import read_request_file
from zoo.flow.inference.requests import GenerationRequest, sample_requests
from zoo.runs.export import write_export


def build(net: VelocityNet | None = None, **kwargs: object) -> Sampler:
    solver = Solver("dopri5", steps=4, rtol=1e-3, atol=1e-3)
    return Sampler(net or Shade(), ConditionalOT(0.0), solver, chunk=4, **kwargs)


def generate(sampler: Sampler, output: Path, count: int, labels: object = None, seed: int = 63, **options: Any) -> Any:
    return generate_folder(sampler, output, GenerationRequest(count, seed, labels), **options)


def read_labels(output: Path) -> list[dict[str, str]]:
    with (output / "labels.csv").open() as file:
        return list(csv.DictReader(file))


def test_requests_do_not_depend_on_the_count() -> None:
    labels, seeds = sample_requests(300, 63, 3)
    assert sample_requests(20, 63, 3) == (labels[:20], seeds[:20])
    assert len(set(seeds)) == 300 and all(labels.count(label) == 100 for label in (1, 2, 3))
    assert set(sample_requests(30, 63, 3, [2, 3])[0]) == {2, 3}
    assert sample_requests(2, 63, 0)[0] is None
    assert sample_requests(2, 64, 0)[1] != seeds[:2]
    for arguments in ((1, 1, 3, [4]), (1, 1, 3, []), (1, 1, 0, [1])):
        with pytest.raises(ValueError, match=r"labels lie between|no classes"):
            sample_requests(*arguments)


def test_images_have_the_names_of_the_lineage(tmp_path: Path) -> None:
    model, output = build(), tmp_path / "deep" / "samples"
    result = generate(model, output, count=10, labels=[1, 3], trajectory=True)
    assert (result["done"], result["skipped"], result["missing"]) == (10, 0, 0)
    assert result["written"] == ["samples_trajectory.gif", "samples_grid.png"]
    names = [f"{index}.png" for index in range(10)]
    assert {path.name for path in output.iterdir()} == {*names, "labels.csv", "settings.json"}
    rows = read_labels(output)
    assert [row["file"] for row in rows] == names
    # a row, asked for by itself, gives the same image
    (tmp_path / "in.jsonl").write_text(json.dumps({key: int(rows[7][key]) for key in ("label", "seed")}))
    sampled = model(*read_request_file(tmp_path / "in.jsonl", model)[:2])[0, ..., 0]
    found_pixels = np.array(Image.open(output / "7.png"))
    assert abs(sampled.astype(int) - found_pixels).max() <= 1


def test_ranks_share_the_work_and_the_last_one_finishes(tmp_path: Path) -> None:
    complete, shared = tmp_path / "whole", tmp_path / "shared"
    generate(build(), complete, count=10)
    result = [generate(build(), shared, count=10, rank=rank, world_size=2) for rank in (1, 0)]
    assert [(each["done"], each["missing"]) for each in result] == [(4, 6), (6, 0)]
    assert (result[0]["written"], result[1]["written"]) == ([], ["shared_grid.png"])
    assert contents(shared) == contents(complete)
    assert (tmp_path / "shared_grid.png").read_bytes() == (tmp_path / "whole_grid.png").read_bytes()


def test_a_killed_call_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "samples"
    generate(build(), output, count=10)
    before = contents(output)
    for name in ("1.png", "9.png"):
        (output / name).unlink()
    (output / ".1.png.tmp-99").write_bytes(b"torn")
    remaining = (output / "0.png").stat().st_mtime_ns
    result = generate(build(), output, count=10)
    assert (result["done"], result["skipped"]) == (2, 8)
    assert contents(output) == before
    assert (output / "0.png").stat().st_mtime_ns == remaining
    assert generate(build(), output, count=10)["done"] == 0


def test_other_settings_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "samples"
    generate(build(), output, count=2)
    other = build()
    other.net.gain.data += 1
    for model, settings, message in (
        (build(), {"seed": 1}, "seed 63 .now 1."),
        (build().using(Solver(), None), {}, "solver.method 'dopri5'"),
        (build(guidance=Guidance(2.0)), {}, ".*guidance.scale None .now 2.0."),
        (other, {}, "weights '[0-9a-f]+.... .now"),
    ):
        with pytest.raises(ValueError, match=f"other settings: {message}"):
            generate(model, output, **{"count": 2, **settings})


def test_points_are_joined_and_plotted(tmp_path: Path) -> None:
    model, output = build(ToyNet()).eval(), tmp_path / "points"
    result = generate(model, output, count=6, trajectory=True)
    assert result["written"] == ["samples.npy", "points_trajectory.gif", "points_grid.png"]
    joined = np.load(output / "samples.npy")
    torch.testing.assert_close(torch.from_numpy(joined), model.sample(*sample_requests(6, 63, 0)), atol=1e-2, rtol=0)
    assert np.array_equal(np.load(output / "5.npy"), joined[5])
    with pytest.raises(ValueError, match="switch off grid"):  # neither images nor points of the plane
        generate(build(ToyNet(dim=5)).eval(), tmp_path / "vectors", count=2)


NAMES = ["cat", "dog", "wild"]


def test_class_names_are_labels_and_stand_in_results(tmp_path: Path) -> None:
    model, output = build(classes=NAMES), tmp_path / "samples"
    generate(model, output, count=5, labels=["wild", 1])
    numbered = build()
    generate(numbered, tmp_path / "numbers", count=5, labels=[3, 1])
    assert [(row["label"], row["class"]) for row in read_labels(output)][:2] == [("3", "wild"), ("1", "cat")]
    assert json.loads((output / "settings.json").read_text())["classes"] == NAMES
    assert (output / "4.png").read_bytes() == (tmp_path / "numbers" / "4.png").read_bytes()
    generate(numbered, output, count=5, labels=[3, 1])  # the same samples, whatever they are called
    for call, message in (
        (lambda: generate(model, tmp_path / "other", 5, ["lion"]), "one of the classes cat, dog, wild"),
        (lambda: generate(numbered, tmp_path / "other", 5, ["cat"]), "label 'cat': expected a number"),
        (lambda: build(classes=NAMES[:2]), "2 names, the net has 3 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    request = tmp_path / "request.jsonl"
    request.write_text('{"label": "dog", "seed": 3, "count": 2}\n{"label": 1, "seed": 1}\n')
    facts = model.process_file(request, tmp_path / "found.png")
    assert facts["classes"] == {"dog": 2, "cat": 1}


def test_labels_of_a_command_stay_class_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{number:03d}" for number in range(1, 11)]
    net = {"image_resolution": 8, "in_channels": 1, "channels": 8, "num_classes": 10}
    specs = {
        "inference": "zoo.flow.Sampler",
        "components": {
            "net": {"class_path": "zoo.flow.UNet", "init_args": net},
            "path": {"class_path": "zoo.flow.ConditionalOT", "init_args": {"sigma_min": 0.0}},
        },
        "options": {"classes": names},
    }
    write_export(tmp_path / "export", specs, {"net": UNet(**net)}, "test")
    options = ["--solver.steps=1", "--grid=false", "--count=2"]
    assert main(["sample", str(tmp_path / "export"), str(tmp_path / "out"), "--labels", "[010, 2]", *options]) == 0
    assert [(row["label"], row["class"]) for row in read_labels(tmp_path / "out")] == [("10", "010"), ("2", "002")]
    assert main(["sample", str(tmp_path / "export"), str(tmp_path / "no"), "--labels", "[lion]", *options]) == 1
    assert "'lion'" in capsys.readouterr().err
