"""Every recipe but the smoke ones, which test_recipes.py runs, trains and validates on a device without values."""

import importlib
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import zoo.hifigan.data
import zoo.hifigan.task
from tests.cli.meta_device import META, HostWork, prepared, train, validate, weightless, without_autocast
from tests.cli.test_recipes import FRAGMENTS, RECIPES, SMOKE, name, without_downloads
from tests.flow.pair_files import write_pairs
from zoo.ci_llm.data.tokenizers import ByteTokenizer, PretrainedTokenizer
from zoo.cli.trainer import ZooCLI
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.flow.nets.autoencoder import FrozenAutoencoder
from zoo.flow.nets.text import FrozenText
from zoo.flow.process.solvers import METHODS, Solver
from zoo.training.task import ZooTask

SMALL = {
    "batch_size": 2, "num_workers": 0, "embedded_utterances": 6, "val_items": 2,
    "max_seconds": 1.0, "train_points": 64,
}  # fmt: skip
NESTED = {"split": {"items": 2, "seconds": 1.0}, "corpus": {"embedded_utterances": 6}}  # of the audio systems


# latents made in code have no captions; the lakes have no demonstrator, nor have tasks of another package
LEFT_OUT = ("flow-text_latents", "compressed_ad-demo_lakes", "compressed_ad-anymdp")
LEFT_OUT += tuple(
    f"miipher-vocos_{stage}_{rate}" for stage in ("pretrain", "finetune") for rate in ("24k", "48k")
)  # as 44k


class FeaturesOfNothing(zoo.hifigan.data.FeatureFolder):
    """Stands for conditioning on disk."""

    channels = 0

    def __init__(self, folder: Path, hop_samples: int, corpus: Any) -> None:
        self.hop_samples = hop_samples
        path = Path(f"features_{self.channels}.npy")
        np.save(path, np.zeros((self.channels, 400), np.float32))
        self.paths = [path] * len(corpus.names)

    def check(self, indices: Any, channels: int | None) -> None:
        pass


@pytest.fixture(autouse=True)
def on_the_meta_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "autocast", without_autocast)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device_type: False)
    monkeypatch.setattr(zoo.hifigan.task, "vocoder_metrics", lambda fake, real, sample_rate: {})  # measured on the host
    monkeypatch.setattr(zoo.hifigan.data, "FeatureFolder", FeaturesOfNothing)
    monkeypatch.setattr(FrozenText, "to", transferred)
    monkeypatch.setattr(FrozenText, "_encode", encoded_bytes)
    monkeypatch.setattr(FrozenText, "fingerprint", lambda text: "")
    monkeypatch.setattr(FrozenAutoencoder, "fingerprint", lambda autoencoder: "")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def transferred(text: Any, device: torch.device) -> Any:
    """`FrozenText.to` of an encoder without weights."""
    text.where = device
    return text


def encoded_bytes(text: Any, prompts: list[str]) -> dict[str, torch.Tensor]:
    """`FrozenText._encode` of an encoder without weights: the data encodes on the CPU, the task on its device."""
    tokens = torch.zeros(len(prompts), text.max_tokens, text.width, device=getattr(text, "where", META))
    return {"tokens": tokens, "mask": torch.ones_like(tokens[..., 0], dtype=torch.bool), "pooled": tokens[:, 0]}


def built(recipe: Path, folder: Path) -> tuple[ZooTask, L.LightningDataModule]:
    """The task of a recipe without weights, and its data, few and made in code."""
    described = load_recipe(recipe)
    overlay, spec = without_downloads(described), described["data"]
    module, _, kind = spec["class_path"].rpartition(".")
    classes = getattr(importlib.import_module(module), kind).__mro__
    available = {
        key for cls in classes if cls.__module__.startswith("zoo") for key in inspect.signature(cls).parameters
    }
    inputs = spec["init_args"]
    small = {key: value for key, value in SMALL.items() if key in available and (key != "batch_size" or key in inputs)}
    small |= NESTED if "split" in available else {}
    if kind == "SuperResolutionData":
        small["split"] = {"items": 2}
    (folder / "small.yaml").write_text(yaml.safe_dump({**overlay, "data": {"init_args": small}}))
    options = ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={folder}/run"]
    if kind == "TextData":
        options.append("--data.init_args.root=null")
    elif kind == "PairData":
        options.append(f"--data.init_args.root={folder}")
    elif "root" in inputs:
        prefix = "corpus." if "split" in available else ""
        options.append(f"--data.init_args.{prefix}embedded_if_missing=true")
    if "root" in inputs.get("images", {}).get("init_args", {}):
        options.append("--data.init_args.images.init_args.embedded_if_missing=true")
    with weightless():
        cli = ZooCLI("fit", ["--config", str(recipe), "--config", str(folder / "small.yaml"), *options])
    assert set(cli.model.specs["components"]) == set(cli.model.inference_modules)
    assert recipe.read_text().startswith("# ")
    model, spec = cli.model, cli.config["data"].as_dict()
    inputs = spec["init_args"]
    data: Any = cli.datamodule
    if kind == "LatentData":  # the autoencoder has no weights to encode images by
        spec["class_path"], kind = "zoo.flow.PairData", "PairData"
        spec["init_args"] = inputs = small
    if kind == "PairData":
        digest = None if model.latents is None else model.latents.autoencoder.fingerprint()
        shape, classes = model.net.sample_shape, model.net.num_classes
        inputs["root"] = str(write_pairs(folder / "pairs", shape, classes, autoencoder=digest))
    if kind == "ImageData" and (inputs["root"] or inputs["hub"]):
        inputs["hub"] = None
        shape = (inputs["channels"], inputs["image_resolution"], inputs["image_resolution"])
        inputs["root"] = str(images(folder / "images", getattr(model.net, "num_classes", 0), shape))
    if kind in ("PairData", "ImageData"):
        data = build(spec)
    if isinstance(getattr(data, "tokenizer", None), PretrainedTokenizer):
        data.tokenizer = model.tokenizer = ByteTokenizer()
    FeaturesOfNothing.channels = getattr(getattr(model, "generator", None), "in_channels", 0)
    return model, data


def images(root: Path, classes: int, shape: tuple[int, ...]) -> Path:
    """Write a folder of 12 black images for each class."""
    for label in range(max(classes, 1)):
        (root / str(label)).mkdir(parents=True)
        for index in range(12):
            pixels = np.zeros((*shape[1:], shape[0]), np.uint8).squeeze()
            Image.fromarray(pixels).save(root / str(label) / f"{index}.png")
    return root


@pytest.mark.parametrize(
    "recipe", [path for path in RECIPES if path not in (*FRAGMENTS, *SMOKE) and name(path) not in LEFT_OUT], ids=name
)
def test_recipe_requests_its_device_for_nothing(recipe: Path, tmp_path: Path) -> None:
    model, data = built(recipe, tmp_path)
    prepared(model, data)
    assert all(tensor.device == META for tensor in (*model.parameters(), *model.buffers()))
    train(model, data)
    assert any(weight.grad is not None for weight in model.parameters())
    validate(model, data)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"dopri5"}))  # which reads the norm of its error
def test_solver_requests_its_device_for_nothing(method: Any) -> None:
    with HostWork():
        assert Solver(method, steps=3).solve(lambda t, x: t * x, torch.zeros(2, 5, device=META)).x.shape == (2, 5)
