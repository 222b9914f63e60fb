import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.flow.conditions import digits, net, prepared, text
from zoo.flow.data.pair_data import PairData
from zoo.flow.evaluation.solver_tables import compare
from zoo.flow.inference.generate import generate
from zoo.flow.inference.pairs import make_pairs
from zoo.flow.inference.requests import GenerationRequest
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.autoencoder import FrozenAutoencoder, LatentSpace
from zoo.flow.nets.dit import DiT
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.image_conditions import Inpainting, SuperResolution
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.sampling import inpaint
from zoo.flow.process.solvers import Method, Solver
from zoo.flow.process.time_samplers import UniformTimes
from zoo.flow.task import FlowTask

IMAGES = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8, 1)


@pytest.fixture(scope="module")
def model() -> Sampler:
    parts = {"text": text(), "image_condition": Inpainting()}
    guidance = NestedGuidance({"image": 1.5, "text": 3.0})
    return Sampler(net(condition_channels=2), ConditionalOT(0.0), Solver("euler", 3), guidance, **parts).eval()


def conditions(model: Sampler, prompts: list[str]) -> GenerationConditions:
    seeds = list(range(len(prompts)))
    return GenerationConditions(prompts, model.image_condition.from_training(torch.zeros(len(prompts), 1, 8, 8), seeds))


def test_scales_of_one_are_the_conditional_field(model: Sampler) -> None:
    messages = conditions(model, ["a cat", "a dog", "a cat"])
    x = model.noise([1, 2, 3])
    complete = model.using(model.solver, None).field(None, messages)(0.3, x)
    for guidance in (NestedGuidance({"image": 1.0, "text": 1.0}), Guidance(1.0)):
        torch.testing.assert_close(model.using(model.solver, guidance).field(None, messages)(0.3, x), complete)
    empty = GenerationConditions([""] * 3, torch.zeros(3, 2, 8, 8))
    none = model.using(model.solver, None).field(None, empty)(0.3, x)
    torch.testing.assert_close(model.using(model.solver, Guidance(0.0)).field(None, messages)(0.3, x), none)
    assert not torch.allclose(complete, none, atol=1e-3)


def test_a_sample_depends_on_what_it_is_given_alone(model: Sampler) -> None:
    messages = conditions(model, ["a cat", "a dog", "a cat"])
    together = model.sample(None, [4, 5, 6], messages)
    torch.testing.assert_close(model.sample(None, [6], messages.rows(slice(2, 3)))[0], together[2])
    other = model.sample(None, [6], GenerationConditions(["a dog"], messages.images[2:]))
    assert not torch.allclose(other[0], together[2], atol=1e-4)
    sampled = model(seeds=[1, 2], prompts=["x", "y"], images=IMAGES, masks=np.ones((2, 8, 8), bool))
    assert sampled.shape == (2, 8, 8, 1) and sampled.dtype == np.uint8
    assert model.dry_run() == "1 sample of shape (1, 8, 8)" and "prompts" in model.usage


def test_what_is_missing_or_too_much_is_named(model: Sampler) -> None:
    plain = Sampler(net(), ConditionalOT(0.0), text=text())
    for call, message in (
        (lambda: model.sample(None, [1]), "prompts are needed"),
        (lambda: model.sample(None, [1], GenerationConditions(["x"])), "images are needed"),
        (lambda: model.sample(None, [1, 2], conditions(model, ["x"])), "1 prompts and 2 seeds"),
        (lambda: plain.sample(None, [1], GenerationConditions(["x"], torch.zeros(1, 2, 8, 8))), "takes no images"),
        (lambda: plain.read_conditions([0], ["x"], [Path("x.png")], []), "takes no images"),
        (lambda: model(prompts=["x"], images=IMAGES[:1, :4]), "expected images"),
        (lambda: model.read_conditions([0], ["x"], [Path("nowhere.png")], []), "no image nowhere.png"),
        (lambda: model.read_conditions([0], ["x"], [], []), "images are needed"),
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
    example = model.write_example(tmp_path / "example")
    assert model.process_file(example, tmp_path / "out.png")["images"] == 4
    sample_requests.write_text('{"seed": 1, "image": "a.png"}\n{"seed": 2}\n')
    with pytest.raises(ValueError, match="some lines have an image, others none"):
        model.process_file(sample_requests, tmp_path / "out.png")


def test_folders_of_samples(model: Sampler, tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / name)
    request, options = GenerationRequest(3, 1, None, ["a cat", ""], tmp_path), {"progress": False, "grid": False}
    result = generate(model, tmp_path / "out", request, trajectory=True, **options)
    assert result["done"] == 3 and result["written"] == ["out_trajectory.gif"]
    with (tmp_path / "out/labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["prompt"], row["image"]) for row in rows] == [("a cat", "a.png"), ("", "b.png"), ("a cat", "a.png")]
    with pytest.raises(ValueError, match="other settings"):
        generate(model, tmp_path / "out", replace(request, prompts=["a dog"]), **options)
    with pytest.raises(ValueError, match="prompts are needed"):
        generate(model, tmp_path / "other", GenerationRequest(3), progress=False)


def test_pairs_hold_what_their_samples_were_given(model: Sampler, tmp_path: Path) -> None:
    for name, image in (("a.png", IMAGES[0]), ("b.png", IMAGES[1])):
        Image.fromarray(image[..., 0]).save(tmp_path / name)
    with pytest.raises(ValueError, match="prompts are needed"):
        make_pairs(model, tmp_path / "pairs", GenerationRequest(2))
    request = GenerationRequest(7, prompts=["a cat", "", "a dog"], images=tmp_path)
    assert make_pairs(model, tmp_path / "pairs", request, shard_size=4)["made"] == 7
    student = task()
    data = PairData(str(tmp_path / "pairs"), batch_size=2, val_share=0.3, cache=str(tmp_path / "cache"))
    prepared(data, text=student.text, image_condition=student.image_condition, net=student.net)
    assert (len(data.train_set), len(data.val_set)) == (5, 2)
    batch = data.collate([data.train_set[0, item] for item in range(5)])
    messages = data.train_set.generation_conditions(range(5))
    assert messages.prompts == ["a cat", "", "a dog", "a cat", ""] and data.val_set.generation_conditions(
        [0]
    ).prompts == ["a dog"]
    assert torch.equal(batch["conditions"]["image"], messages.images) and messages.images.shape == (5, 2, 8, 8)
    calls = messages.images[:, :1] == 0
    source = torch.from_numpy(IMAGES[[0, 1, 0, 1, 0]]).permute(0, 3, 1, 2) / 127.5 - 1
    torch.testing.assert_close(messages.images[:, 1:][calls], source[calls])
    again = model.solver.solve(model.field(None, messages), batch["x0"]).x
    torch.testing.assert_close(batch["x1"], again.detach())
    student.training_step(batch, 0).backward()
    assert data.val_set.labels.tolist() == [0, 0]
    plain = SimpleNamespace(trainer=data.trainer, text=None, image_condition=Inpainting(), latents=None)
    data.trainer.lightning_module = plain
    with pytest.raises(ValueError, match=r"hold prompts, model\.init_args\.text is null"):
        data.setup("fit")


@pytest.mark.parametrize("method", ["euler", "heun2"])
def test_what_is_known_is_put_back(method: Method) -> None:
    condition = Inpainting(put_back=True)
    parts = {"text": text(), "image_condition": condition}
    made = Sampler(net(condition_channels=2), ConditionalOT(0.1), Solver(method, 3), None, **parts).eval()
    images = torch.rand(3, 1, 8, 8) * 2 - 1
    messages = GenerationConditions(["a", "b", ""], condition.from_training(images, [1, 2, 3]))
    remaining = messages.images[:, :1] == 0
    x0 = made.noise([4, 5, 6])
    trajectory = made.trajectory(None, [4, 5, 6], messages)
    for t, state in zip(made.solver.times()[1:-1], trajectory[1:-1], strict=True):
        on_path = made.path.sample(x0, images, torch.full((3,), t))
        torch.testing.assert_close(state[remaining], on_path[remaining])
    assert torch.equal(trajectory[-1][remaining], images[remaining])
    expected = inpaint(made.field(None, messages), x0, images, remaining, made.path, made.solver).x
    torch.testing.assert_close(made.sample(None, [4, 5, 6], messages), expected.detach())
    condition.put_back = False
    assert not torch.allclose(made.sample(None, [4, 5, 6], messages)[remaining], images[remaining], atol=0.1)
    assert vars(Inpainting()) == {"least": 0.25, "most": 0.75, "put_back": False}  # of folders that were begun before


def test_in_latents_known_pixels_are_put_back() -> None:
    config = {"in_channels": 1, "out_channels": 1, "block_out_channels": [4, 8], "layers_per_block": 1}
    space = LatentSpace(FrozenAutoencoder(config={**config, "latent_channels": 2, "norm_num_groups": 2}))
    torch.manual_seed(0)
    flow = DiT(4, 2, patch=1, depth=1, dim=8, heads=1, num_classes=0, condition_channels=3)
    torch.nn.init.normal_(flow.tail.weight)
    condition = Inpainting(put_back=True)
    made = Sampler(flow, ConditionalOT(0.0), Solver("euler", 2), latents=space, image_condition=condition).eval()
    images = torch.rand(2, 1, 8, 8) * 2 - 1
    holes = torch.zeros(2, 1, 8, 8)
    holes[:, :, :3, :3] = 1  # reaches into the second cell of the latents
    messages = GenerationConditions(None, condition.from_user(images, holes, [0, 1]))
    with torch.no_grad():
        result = made.sample(None, [1, 2], messages)
        (solution,) = made.solutions(None, [1, 2], conditions=messages, decode=False)
        latents = space.normalise(space.encode(messages.images[:, 1:]).chunk(2, dim=1)[0])
    assert torch.equal(result[holes == 0], images[holes == 0])
    torch.testing.assert_close(solution.x[:, :, 2:], latents[:, :, 2:])
    assert not torch.allclose(solution.x[:, :, :2, :2], latents[:, :, :2, :2], atol=1e-2)


def test_solvers_and_scales_are_compared_with_what_is_given(model: Sampler, tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / name)

    def quality(samples: torch.Tensor, labels: list[int] | None) -> dict[str, float]:
        return {"mean": float(samples.mean())}

    request = GenerationRequest(3, prompts=["a cat", "a dog"], images=tmp_path)
    seeds = request.labels_and_seeds(model)[1]
    conditions = request.conditions(model, seeds)
    options = {"methods": ["euler"], "budgets": [2]}
    with pytest.raises(ValueError, match="nested guidance has a scale for each"):
        compare(model, tmp_path / "out", quality, request, **options)
    plain = model.using(model.solver, None)
    result = compare(plain, tmp_path / "out", quality, request, scales=[1.0, 2.0], **options)
    (row,) = result["solvers"]
    samples = plain.using(Solver("euler", 2), None).sample(None, seeds, conditions)
    assert row["quality"]["mean"] == pytest.approx(float(samples.mean()))
    same, more = (each["quality"]["mean"] for each in result["guidance"])
    assert same == pytest.approx(row["quality"]["mean"], abs=1e-5) and abs(more - same) > 1e-4


def test_the_page_requests_for_them(model: Sampler, tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "a.png")
    fields = {field.name: field for field in model.fields()}
    assert {"prompt", "image", "mask", "guidance_image", "guidance_text"} <= fields.keys() and "guidance" not in fields
    assert fields["guidance_text"].default == 3.0 and fields["mask"].optional
    values = {name: field.default for name, field in fields.items()} | {"count": 2, "image": tmp_path / "a.png"}
    values["animation"] = False
    requested = [(values, tmp_path), ({**values, "prompt": "a cat", "guidance_text": 1.0}, tmp_path)]
    requested.append(({**values, "prompt": "a dog"}, tmp_path))
    answers = model.answer_batch(requested, lambda share, text: None)
    assert [[part.kind for part in parts] for parts in answers] == [["image", "table"]] * 3
    sizes = Sampler(net(condition_channels=1), ConditionalOT(0.0), text=text(), image_condition=SuperResolution(4))
    assert {"guidance", "prompt", "image"} <= {field.name for field in sizes.fields()}


def task(**arguments: object) -> FlowTask:
    parts = {"text": text(), "image_condition": Inpainting(), "label_drop": 0.0, **arguments}
    made = FlowTask(
        net(condition_channels=2), ConditionalOT(0.0), UniformTimes(), lambda p: torch.optim.SGD(p, 0.1), **parts
    )
    made.log_terms = lambda *args, **kwargs: None
    return made.eval()


def test_training_drops_each_kind_and_evaluation_none(tmp_path: Path) -> None:
    made = task()
    data = prepared(digits(tmp_path, captions="a {}"), text=made.text, image_condition=Inpainting(), net=made.net)
    batch = data.train_set.__getitems__([(0, item) for item in range(64)])
    plain = made.training_step(batch, 0)
    assert torch.equal(plain, task(condition_drop={"text": 0.0}).training_step(batch, 0))
    exclude_images = task(condition_drop={"text": 1.0, "image": 1.0}).training_step(batch, 0)
    assert torch.equal(exclude_images, task(joint_drop=1.0).training_step(batch, 0)) and not torch.equal(
        exclude_images, plain
    )
    messages = {**batch["conditions"], **{name: value.expand_as(batch["conditions"][name]) for name, value in
            made.text.null().items() if name in batch["conditions"]}}  # fmt: skip
    messages["image"] = torch.zeros_like(messages["image"])
    torch.testing.assert_close(made.training_step({**batch, "conditions": messages}, 0), exclude_images)
    remaining = task(condition_drop={"text": 0.3, "image": 0.5}, joint_drop=0.2).prepare_training_batch(batch)["keep"]
    shares = {kind: float((value == 0).float().mean()) for kind, value in remaining.items()}
    assert 0.05 < shares["label"] < shares["text"] < shares["image"] < 0.8
    loss, count = made.evaluate(data.val_set.__getitems__([0, 1]), 0, "val")
    assert count == 2 and torch.equal(
        loss["loss"], task(joint_drop=0.9).evaluate(data.val_set.__getitems__([0, 1]), 0, "val")[0]["loss"]
    )
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
    with pytest.raises(ValueError, match="the net takes none"):
        FlowTask(net(), ConditionalOT(0.0), UniformTimes(), torch.optim.Adam, label_drop=0.0, text=text(),
                 image_condition=Inpainting())  # fmt: skip
