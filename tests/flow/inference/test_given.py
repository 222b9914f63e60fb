import copy
import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.flow.conditions import digits, net, prepared, quiet_task, text
from zoo.flow import FlowTask, Guidance, Inpainting, NestedGuidance, OptimalTransport, Sampler, Solver, SuperResolution
from zoo.flow.inference.generate import generate
from zoo.flow.inference.pairs import make_pairs
from zoo.flow.inference.request_files import read_conditions
from zoo.flow.inference.requests import GenerationRequest, sampler_settings
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.paths import ConditionalOT
from zoo.runs.inference.predict import list_input_files, predict_files

IMAGES = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8, 1)


@pytest.fixture(scope="module")
def model() -> Sampler:
    parts = {"text": text(), "image_condition": Inpainting()}
    guidance = NestedGuidance({"image": 1.5, "text": 3.0})
    return Sampler(net(condition_channels=2), ConditionalOT(0.0), Solver("euler", 3), guidance, **parts).eval()


def test_a_scale_of_zero_is_the_field_of_empty_conditions(model: Sampler) -> None:
    images = model.image_condition.from_training(torch.zeros(3, 1, 8, 8), [0, 1, 2])
    messages = GenerationConditions(["a cat", "a dog", "a cat"], images)
    x = model.noise([1, 2, 3])
    complete = model.using(model.solver, None).field(None, messages)(0.3, x)
    empty = GenerationConditions([""] * 3, torch.zeros(3, 2, 8, 8))
    none = model.using(model.solver, None).field(None, empty)(0.3, x)
    torch.testing.assert_close(model.using(model.solver, Guidance(0.0)).field(None, messages)(0.3, x), none)
    assert not torch.allclose(complete, none, atol=1e-3)


def test_the_order_of_scales_is_a_setting(model: Sampler) -> None:
    other = model.using(model.solver, NestedGuidance({"text": 3.0, "image": 1.5}))
    assert sampler_settings(other)["guidance"] != sampler_settings(model)["guidance"]


def test_what_is_missing_or_too_much_is_named(model: Sampler) -> None:
    plain = Sampler(net(), ConditionalOT(0.0), text=text())
    for call, message in (
        (lambda: model.sample(None, [1]), "prompts are needed"),
        (lambda: model.sample(None, [1], GenerationConditions(["x"])), "images are needed"),
        (lambda: plain.sample(None, [1], GenerationConditions(["x"], torch.zeros(1, 2, 8, 8))), "takes no images"),
        (lambda: plain(prompts=["x"], masks=IMAGES[:1, ..., 0] > 3), "takes no masks"),
        (lambda: model(prompts=["x"], images=IMAGES[:1] / 255), "uint8, found .* float64"),
        (lambda: model(prompts=["x", ""], images=IMAGES, masks=IMAGES[:1, ..., 0] > 3), r"expected masks \(2, 8, 8\)"),
        (lambda: Sampler(net(), ConditionalOT(0.0), guidance=NestedGuidance({"label": 2.0}), text=text()), "by label"),
        (lambda: read_conditions(model, [0], ["x"], [Path("nowhere.png")], []), "no image nowhere.png"),
        (lambda: task(guidance=NestedGuidance({"text": 2.0, "label": 2.0})), "a net that takes text, image"),
        (lambda: make_pairs(model, Path("pairs"), GenerationRequest(2)), "without texts or images"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            call()


def test_request_files(model: Sampler, tmp_path: Path) -> None:
    Image.fromarray(IMAGES[1, ..., 0]).resize((20, 20)).save(tmp_path / "a.png")
    Image.new("L", (8, 8), 255).save(tmp_path / "hole.png")
    rows = [{"seed": 3, "count": 2, "prompt": "a cat", "image": "a.png", "mask": "hole.png"}]
    rows += [{"seed": 9, "image": "a.png", "mask": "hole.png"}]
    sample_requests = tmp_path / "in.jsonl"
    sample_requests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert model.process_file(sample_requests, tmp_path / "out.png") == {"images": 3, "nfe": 3}
    (file,) = list_input_files(sample_requests, tmp_path / "out", model.input_suffixes, model.output_suffix)
    for changed, done in ((False, 1), (False, 0), (True, 1)):
        Image.new("L", (8, 8), 0 if changed else 255).save(tmp_path / "hole.png")
        assert predict_files(model, [file], tmp_path / "out", {"checkpoint": "x"})["done"] == done
    example = model.write_example(tmp_path / "example")
    assert model.process_file(example, tmp_path / "out.png")["images"] == 4
    sample_requests.write_text('{"seed": 1, "image": "a.png"}\n{"seed": 2}\n')
    with pytest.raises(ValueError, match="some lines have an image, others none"):
        model.process_file(sample_requests, tmp_path / "out.png")


def test_given_images_are_read_as_those_of_the_training(model: Sampler, tmp_path: Path) -> None:
    clear, sides = tmp_path / "clear.png", tmp_path / "sides.png"
    Image.new("LA", (8, 8)).save(clear)
    wide = Image.new("L", (24, 8), 255)
    wide.paste(0, (8, 0, 16, 8))
    wide.save(sides)
    cropping = copy.copy(model)
    cropping.resize, cropping.background = "crop", (0, 0, 0)
    for sampler, missing, value in ((model, 1, 1.0), (cropping, 0, -1.0)):
        mask, pixels = read_conditions(sampler, [0], [""], [clear], [sides]).images[0]
        assert mask.max() == missing and pixels[:, 4].unique().tolist() == [value]
        assert read_conditions(sampler, [0], [""], [clear], [clear]).images[0, 0].min() == 1  # clear is missing


def test_folders_of_samples(model: Sampler, tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / name)
    request, options = GenerationRequest(3, 1, None, ["a cat", ""], tmp_path), {"grid": False}
    assert generate(model, tmp_path / "out", request, **options)["done"] == 3
    with (tmp_path / "out/labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["prompt"], row["image"]) for row in rows] == [("a cat", "a.png"), ("", "b.png"), ("a cat", "a.png")]
    with pytest.raises(ValueError, match="other settings"):
        generate(model, tmp_path / "out", replace(request, prompts=["a dog"]), **options)


def test_the_page_requests_for_them(model: Sampler, tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "a.png")
    fields = {field.name: field for field in model.fields()}
    assert {"prompt", "image", "mask", "guidance_image", "guidance_text"} <= fields.keys() and "guidance" not in fields
    assert fields["guidance_text"].default == 3.0 and fields["mask"].optional
    values = {name: field.default for name, field in fields.items()} | {"count": 2, "image": tmp_path / "a.png"}
    values["animation"] = False
    changes = {}, {"prompt": "a cat", "guidance_text": 1.0}, {"prompt": "a dog"}, {"image": tmp_path / "none.png"}
    requests = [({**values, **change}, tmp_path / str(number)) for number, change in enumerate(changes)]
    for _, folder in requests:
        folder.mkdir()
    parts = [model.answer_batch(part, lambda share, text: None) for part in (requests[:3], requests[2:])]
    *answers, missing = parts[0] + parts[1]
    assert isinstance(missing, FileNotFoundError)
    for outputs, (form, folder) in zip(answers, [*requests[:3], requests[2]], strict=True):
        pixels = np.array(Image.open(folder / "samples.png"), int)
        assert [output.kind for output in outputs] == ["image", "table"]
        assert model.answer(form, tmp_path, lambda share, text: None) == outputs
        assert abs(pixels - np.array(Image.open(tmp_path / "samples.png"), int)).max() <= 1


def task(**arguments: object) -> FlowTask:
    parts = {"text": text(), "image_condition": Inpainting(), "label_drop": 0.0, **arguments}
    return quiet_task(net(condition_channels=2), **parts).eval()


def test_training_drops_each_kind_and_evaluation_none(tmp_path: Path) -> None:
    made = task()
    data = prepared(digits(tmp_path, captions="a {}"), text=made.text, image_condition=Inpainting(), net=made.net)
    batch = data.train_set.__getitems__([(0, item) for item in range(64)])
    plain = made.training_step(batch, 0)
    assert torch.equal(plain, task(condition_drop={"text": 0.0}).training_step(batch, 0))
    exclude_images = task(condition_drop={"text": 1.0, "image": 1.0}).training_step(batch, 0)
    assert torch.equal(exclude_images, task(condition_drop={"all": 1.0}).training_step(batch, 0))
    assert not torch.equal(exclude_images, plain)
    given, null = batch["conditions"], made.text.null()
    messages = {name: null[name].expand_as(value) for name, value in given.items() if name in null}
    messages["image"] = torch.zeros_like(given["image"])
    torch.testing.assert_close(made.training_step({**batch, "conditions": messages}, 0), exclude_images)
    remaining = task(condition_drop={"text": 0.3, "image": 0.5, "all": 0.2}).prepare_training_batch(batch)["keep"]
    shares = {kind: float((value == 0).float().mean()) for kind, value in remaining.items()}
    assert 0.05 < shares["label"] < shares["text"] < shares["image"] < 0.8
    held_out = data.val_set.__getitems__([0, 1])
    loss, count = made.evaluate(held_out, 0, "val")
    assert count == 2
    assert torch.equal(loss["loss"], task(condition_drop={"all": 0.9}).evaluate(held_out, 0, "val")[0]["loss"])
    with pytest.raises(ValueError, match="the data gives none"):
        made.training_step({name: value for name, value in batch.items() if name != "conditions"}, 0)


def test_parts_that_do_not_fit_are_refused() -> None:
    for arguments, message in (
        ({"text": None}, "context_dim is 8, model.text is null"),
        ({"image_condition": SuperResolution()}, "condition_channels is 2, model.image_condition gives 1"),
        ({"condition_drop": {"audio": 0.1}}, "names 'audio'"),
    ):
        with pytest.raises(ValueError, match=message):
            task(**arguments)
    coupled = task(coupling=OptimalTransport())
    coupled._trainer = SimpleNamespace(datamodule=None)
    with pytest.raises(ValueError, match="noise of its kind"):
        coupled.setup("fit")
    with pytest.raises(ValueError, match="the net takes none"):
        quiet_task(net(), label_drop=0.0, text=text(), image_condition=Inpainting())
