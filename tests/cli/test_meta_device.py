"""Every recipe trains, validates and infers on a device that tells nothing back and lends nothing from the CPU."""

import importlib
import inspect
import logging
from collections.abc import Iterator
from functools import singledispatch
from itertools import repeat
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import yaml

import zoo.hifigan.data
import zoo.hifigan.task
from tests.cli.meta_device import META, HostWork, prepared, train, validate, weightless, without_autocast
from tests.cli.test_recipes import FRAGMENTS, RECIPES, name, without_downloads
from zoo.audiosr.diffusion.samplers import conditioned
from zoo.audiosr.inference.chunks import copied_bands
from zoo.audiosr.inference.reconstruct import Reconstructor
from zoo.audiosr.inference.restore import Restorer as SuperResolver
from zoo.audiosr.nets.features import whole_mel
from zoo.audiosr.nets.vae import split
from zoo.ci_llm.data.tokenizers import ByteTokenizer, PretrainedTokenizer
from zoo.ci_llm.inference.generate import Reader
from zoo.ci_llm.inference.writer import Writer
from zoo.ci_llm.nets.sampling import Sampling
from zoo.cli.trainer import ZooCLI, restrict_imports
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.compressed_ad.envs.base import tensor_dtype
from zoo.compressed_ad.inference import Agent
from zoo.compressed_ad.nets.steps import Steps
from zoo.flow.inference.reconstructor import Reconstructor as ImageReconstructor
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.text import FrozenText
from zoo.flow.process.conditions import Given
from zoo.flow.process.solvers import METHODS, Solver
from zoo.hifigan.inference import Vocoder
from zoo.miipher.inference.restore import FeatureExtractor, Restorer
from zoo.training.task import ZooTask

SMALL = {
    "batch_size": 2, "num_workers": 0, "embedded_utterances": 6, "val_items": 2, "val_speakers": None,
    "val_seconds": 1.0, "max_seconds": 1.0, "train_points": 64,
}  # fmt: skip


# latents made in code have no captions; nobody can demonstrate the lakes
LEFT_OUT = ("flow-text_latents", "compressed_ad-demo_lakes")


class FeaturesOfNothing(zoo.hifigan.data.FeatureFolder):
    """Stands for conditioning on disk."""

    channels = 0

    def __init__(self, folder: Path, hop_samples: int, corpus: Any) -> None:
        self.hop_samples = hop_samples

    def path(self, index: int) -> Path:
        path = Path(f"features_{self.channels}.npy")
        np.save(path, np.zeros((self.channels, 400), np.float32))
        return path

    def check(self, indices: Any, channels: int | None) -> None:
        pass


@pytest.fixture(autouse=True)
def on_the_meta_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "autocast", without_autocast)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device_type: False)
    monkeypatch.setattr(zoo.hifigan.task, "compare", lambda fake, real, sample_rate: {})  # measured on the host
    monkeypatch.setattr(zoo.hifigan.data, "FeatureFolder", FeaturesOfNothing)
    monkeypatch.setattr(FrozenText, "to", moved)
    monkeypatch.setattr(FrozenText, "_encode", encoded)
    monkeypatch.setattr(FrozenText, "fingerprint", lambda text: "")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def moved(text: Any, device: torch.device) -> Any:
    """`FrozenText.to` of an encoder without weights."""
    text.where = device
    return text


def encoded(text: Any, prompts: list[str]) -> dict[str, torch.Tensor]:
    """`FrozenText._encode` of an encoder without weights: the data encodes on the CPU, the task on its device."""
    tokens = torch.zeros(len(prompts), text.max_tokens, text.width, device=getattr(text, "where", META))
    return {"tokens": tokens, "mask": torch.ones_like(tokens[..., 0], dtype=torch.bool), "pooled": tokens[:, 0]}


def built(recipe: Path, folder: Path) -> tuple[ZooTask, L.LightningDataModule]:
    """The task of a recipe without weights, and its data, few and made in code."""
    described = load_recipe(recipe)
    overlay, spec = without_downloads(described), described["data"]
    module, _, kind = spec["class_path"].rpartition(".")
    classes = getattr(importlib.import_module(module), kind).__mro__
    known = {key for cls in classes if cls.__module__.startswith("zoo") for key in inspect.signature(cls).parameters}
    given = spec["init_args"]
    small = {key: value for key, value in SMALL.items() if key in known and (key != "batch_size" or key in given)}
    if kind == "HistoryData":
        del small["val_items"]
    (folder / "small.yaml").write_text(yaml.safe_dump(overlay))
    options = ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={folder}/run"]
    if "root" in given:
        options.append("--data.init_args.embedded_if_missing=true")
    if "root" in given.get("images", {}).get("init_args", {}):
        options.append("--data.init_args.images.init_args.embedded_if_missing=true")
    restrict_imports()
    with weightless():
        cli = ZooCLI("fit", ["--config", str(recipe), "--config", str(folder / "small.yaml"), *options])
    assert set(cli.model.specs["components"]) == set(cli.model.inference_modules)
    assert recipe.read_text().startswith("# ")
    model, spec = cli.model, cli.config["data"].as_dict()
    given = spec["init_args"]
    given |= small
    if kind == "LatentData":  # latents made in code: the autoencoder has no weights
        spec["class_path"], kind = "zoo.flow.PairData", "PairData"
        spec["init_args"] = given = small | {"root": str(folder / "none"), "embedded_if_missing": True}
    if kind == "PairData":
        given |= {"embedded_shape": list(model.net.sample_shape), "embedded_classes": model.net.num_classes}
    if kind == "ImageData" and given["root"] is not None:
        shape = (given["channels"], given["image_resolution"], given["image_resolution"])
        given["root"] = str(images(folder / "images.npz", getattr(model.net, "num_classes", 0), shape))
    data = build(spec)
    if isinstance(getattr(data, "tokenizer", None), PretrainedTokenizer):
        data.tokenizer = model.tokenizer = ByteTokenizer()
    FeaturesOfNothing.channels = getattr(getattr(model, "generator", None), "in_channels", 0)
    return model, data


def images(path: Path, classes: int, shape: tuple[int, ...]) -> Path:
    labels = np.repeat(np.arange(max(classes, 1)), 12)
    np.savez(path, images=np.zeros((len(labels), *shape[1:], shape[0]), np.uint8).squeeze(), labels=labels)
    return path


@pytest.mark.parametrize(
    "recipe", [path for path in RECIPES if path not in FRAGMENTS and name(path) not in LEFT_OUT], ids=name
)
def test_recipe_asks_its_device_for_nothing(recipe: Path, tmp_path: Path) -> None:
    model, data = built(recipe, tmp_path)
    prepared(model, data)
    assert all(tensor.device == META for tensor in (*model.parameters(), *model.buffers()))
    train(model, data)
    assert any(weight.grad is not None for weight in model.parameters())
    validate(model, data)
    inference = model.inference().eval()
    with HostWork(), torch.inference_mode():
        infer(inference)


@singledispatch
def infer(inference: Any) -> None:
    """The net calls, samplers and solvers of an Inference."""
    raise NotImplementedError(type(inference).__name__)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=META)


@infer.register
def _(inference: Vocoder) -> None:
    bands = inference.generator.in_channels
    frames = noise(1, bands, 9) if inference.mel is None else inference.mel(noise(1, 8000))
    assert inference._synthesiser(frames).shape[-1] > 8 * inference.generator.hop_length


@infer.register
def _(inference: Restorer) -> None:
    features = inference.encoder(noise(2, 6400), torch.full((2,), 6000, device=META))
    assert inference.generator(features.transpose(1, 2)).shape[0] == 2


@infer.register
def _(inference: FeatureExtractor) -> None:
    assert inference.encoder(noise(2, 6400)).shape[:2] == (2, 20)
    assert inference.encoder(noise(2, 6400), torch.full((2,), 6000, device=META)).shape[:2] == (2, 20)


@infer.register
def _(inference: Sampler) -> None:
    labels = [1, 1] if inference.net.num_classes else None
    x = noise(2, *inference.net.sample_shape)
    image = inference.net.condition_shapes.get("image") if inference.given_keys else None
    shown = noise(2, *image, *x.shape[2:]) if image else None
    given = Given(["a", "b"] if inference.text else None, shown)
    assert Solver("euler", steps=1).solve(inference.field(labels, given), x).x.shape == x.shape


@infer.register
def _(inference: ImageReconstructor) -> None:
    images = noise(2, inference.net.image_channels, 4 * inference.net.factor, 4 * inference.net.factor)
    assert inference.net.decode(inference.net.encode(images).chunk(2, dim=1)[0]).shape == images.shape


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"dopri5"}))  # which reads the norm of its error
def test_solver_asks_its_device_for_nothing(method: Any) -> None:
    with HostWork():
        assert Solver(method, steps=3).solve(lambda t, x: t * x, noise(2, 5)).x.shape == (2, 5)


@infer.register
def _(inference: Reconstructor) -> None:
    mel = whole_mel(inference.features(noise(1, 1, 2 * inference.features.n_fft)), inference.autoencoder.factor)
    assert inference.autoencoder.decode(split(inference.autoencoder.encode(mel))[0]).shape == mel.shape


@infer.register
def _(inference: SuperResolver) -> None:
    mel = inference.features(noise(2, 1, 2 * inference.unit_samples))
    mel = whole_mel(mel, inference.autoencoder.factor * inference.net.unet.factor)
    condition = split(inference.autoencoder.encode(mel))[0]
    encoded = inference.net.encode_clip(mel)
    copied = copied_bands(inference.features, np.array([4000.0]))
    scale, settings = inference.net.latent_scale, inference.settings
    predict = conditioned(inference.net, condition * scale, encoded, settings.guidance_scale, settings.guidance_rescale)
    sampler = inference.settings.sampler
    sampler.steps = 2
    latent = sampler.sample(predict, noise(*condition.shape), inference.diffusion, repeat(noise(*condition.shape)))
    decoded = torch.where(copied, mel, inference.autoencoder.decode(latent / inference.net.latent_scale))
    assert inference.vocoder(decoded).shape[0] == 2


@infer.register
def _(inference: Writer) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64, device=META)
    with inference.crowd.only(0) if inference.crowd.count > 2 else inference.crowd.without_agents():
        read = Reader(inference.crowd, ids)
        for tokens in (ids, ids[:, :1]):
            last = read(tokens, 1)[:, :, -1]
            weights = last.new_zeros(2, inference.crowd.count)
            joined = inference.aggregator.combine(last, weights, torch.rand(2, device=META))
            for sampling in (inference.sampling or Sampling(), Sampling(0.7, top_k=3, top_p=0.9, min_p=0.1)):
                assert sampling.choose(joined, torch.rand(2, device=META)).shape == (2,)


@infer.register
def _(inference: Agent) -> None:
    policy, space = inference.policy, inference.env.schema.observation
    cells = torch.zeros(2, *space.shape, dtype=tensor_dtype(space), device=META)
    state = policy.begin()
    for _ in range(min(policy.capacity(False) + 2, 16)):  # over a compression, where windows are short
        actions = policy.head.best(policy.act(state, cells))[:, None]
        dones, rewards = torch.zeros(2, 1, dtype=torch.bool, device=META), torch.zeros(2, 1, device=META)
        policy.observe(state, Steps(cells[:, None], actions, rewards, cells[:, None], dones))
