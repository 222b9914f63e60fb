"""Containers and eras of the Miipher-2 reproductions, built from tiny parts; golden files are in tests/parity."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import zoo
from tests.miipher import parts
from tests.miipher.parts import backbone, cleaner
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.convert.layouts import to_original_names
from zoo.hifigan.nets.conditioners import ConformerConditioner, PrenetConditioner
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.vocos import Vocos
from zoo.miipher.convert import (
    convert,
    convert_config,
    describe,
    from_original,
    is_original,
    original_state,
    to_original,
    vocoder_from_original,
)
from zoo.miipher.nets.backbone import Backbone

State = dict[str, Tensor]
MODEL = {"hubert_model_name": "somewhere/tiny", "hubert_layer": 2, "adapter_hidden_dim": 24, "model_type": "hubert"}
PREFIX = "extractor.model."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole backbone (3 blocks) in transformers' layout."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    backbone(layer=3).save_source(path)
    return path


@pytest.fixture(scope="module")
def state(folder: Path) -> State:
    """An adapter's state dict as the original's last era names it: 2 of 3 blocks, trained norms."""
    torch.manual_seed(0)
    full = Backbone(layer=3, source=str(folder)).model.state_dict()
    results = {f"{PREFIX}{key}": value.clone() for key, value in full.items()}
    for block in range(2):
        norm = f"{PREFIX}encoder.layers.{block}.final_layer_norm"
        results[f"{norm}.weight"] = 1 + 0.1 * torch.randn(32)
        results[f"{norm}.bias"] = 0.1 * torch.randn(32)
        shapes = {"ff.0.weight": (32,), "ff.0.bias": (32,), "ff.1.weight": (24, 32), "ff.1.bias": (24,)}
        for name, shape in {**shapes, "ff.3.weight": (32, 24), "ff.3.bias": (32,)}.items():
            results[f"adapters.{block}.{name}"] = 0.2 * torch.randn(shape)
    return results


@pytest.fixture(scope="module")
def expected(folder: Path, state: State, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    path = tmp_path_factory.mktemp("plain") / "checkpoint_1k.pt"
    torch.save({"model_state_dict": state, "config": {"model": MODEL}}, path)
    return features(from_original(path, folder))


def features(model: nn.Module) -> Tensor:
    waveform = 0.1 * torch.randn(2, 3000, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(waveform)


def renamed(state: State, old: str, new: str) -> State:
    return {key.replace(old, new): value for key, value in state.items()}


def accelerate(folder: Path, models: list[State], unsafe: bool) -> Path:
    folder.mkdir(parents=True)
    for number, model in enumerate(models):
        ending = f"_{number}" if number else ""
        if unsafe:
            torch.save(model, folder / f"pytorch_model{ending}.bin")
        else:
            save_file({key: value.clone() for key, value in model.items()}, folder / f"model{ending}.safetensors")
    return folder


def bare(state: State, at: Path) -> Path:
    torch.save(state, at / "adapter_final.pt")
    return at / "adapter_final.pt"


def hubert_era(state: State, at: Path) -> Path:
    path = at / "checkpoint_199k.pt"
    torch.save({"step": 199000, "model_state_dict": renamed(state, PREFIX, "extractor.hubert.")}, path)
    return path


def several_processes(state: State, at: Path) -> Path:
    target = {f"hubert.{key.removeprefix(PREFIX)}": value for key, value in state.items() if key.startswith(PREFIX)}
    models = [{f"module.{key}": value for key, value in model.items()} for model in (state, target)]
    return accelerate(at / "checkpoint_500k", models, unsafe=True)


def older_weight_norm(state: State, at: Path) -> Path:
    old = renamed(state, "parametrizations.weight.original0", "weight_g")
    return accelerate(at / "final", [renamed(old, "parametrizations.weight.original1", "weight_v")], unsafe=False)


def counted_from_zero(state: State, at: Path) -> Path:
    torch.save({"model_state_dict": state, "config": {"model": {**MODEL, "hubert_layer": 1}}}, at / "checkpoint_1k.pt")
    return at / "checkpoint_1k.pt"


CONTAINERS = [bare, hubert_era, several_processes, older_weight_norm, counted_from_zero]


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers(
    folder: Path, state: State, expected: Tensor, tmp_path: Path, container: Callable[[State, Path], Path]
) -> None:
    path = container(state, tmp_path)
    assert is_original(path)
    assert describe(path)["adapters"] == "2 of 24"
    assert torch.equal(features(from_original(path, folder)), expected)


def test_first_era_is_refused(folder: Path, state: State, tmp_path: Path) -> None:
    inner = {key: value for key, value in state.items() if key.startswith(PREFIX)}
    for key, value in state.items():
        if key.startswith("adapters."):
            _, number, rest = key.split(".", 2)
            inner[f"{PREFIX}encoder.layers.{number}.adapter.{rest}"] = value
    with pytest.raises(ValueError, match="follow the whole block"):
        from_original(bare(renamed(inner, PREFIX, "extractor.hubert."), tmp_path), folder)


def test_contradicting_layers_are_refused(folder: Path, state: State, expected: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1k.pt"
    torch.save({"model_state_dict": state, "config": {"model": {**MODEL, "hubert_layer": 9}}}, path)
    for match, layer in (("hubert_layer is 9", None), ("layer is 3", 3)):
        with pytest.raises(ValueError, match=match):
            from_original(path, folder, layer=layer)
    with pytest.raises(ValueError, match="does not say its backbone"):
        from_original(bare(state, tmp_path))
    assert torch.equal(features(from_original(path, folder, layer=2)), expected)


def test_untrained_norms_are_ambiguous(folder: Path, state: State, tmp_path: Path) -> None:
    full = Backbone(layer=3, source=str(folder)).model.state_dict()
    untrained = {
        key: full[key.removeprefix(PREFIX)] if "final_layer_norm" in key else value for key, value in state.items()
    }
    for container in (bare, counted_from_zero):
        with pytest.raises(ValueError, match="followed the whole block"):
            from_original(container(untrained, tmp_path), folder)
    from_original(bare(untrained, tmp_path), folder, attachment="parallel")
    torch.save({"model_state_dict": untrained, "config": {"model": MODEL}}, tmp_path / "checkpoint_2k.pt")
    from_original(tmp_path / "checkpoint_2k.pt", folder)  # counting from 1 came after that era


def test_the_files_own_frozen_tensors_count(
    folder: Path, state: State, expected: Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"{PREFIX}encoder.layers.0.feed_forward.output_dense.bias"
    other = torch.linspace(-1, 1, 32)
    path = bare({**state, key: other}, tmp_path)
    model = from_original(path, folder)
    assert not torch.allclose(features(model), expected, atol=1e-3)
    assert "1 frozen tensors differ" in caplog.text
    to_original(model, tmp_path / "back.pt", folder)
    back = load_foreign_checkpoint(tmp_path / "back.pt")["model_state_dict"]
    assert torch.equal(back[key], other)
    convert(path, tmp_path / "exported", backbone=folder)
    again = zoo.load(tmp_path / "exported").encoder
    assert torch.equal(again.backbone.model.state_dict()[key.removeprefix(PREFIX)], other)


def test_missing_and_unknown_tensors_are_named(folder: Path, state: State, tmp_path: Path) -> None:
    block = f"{PREFIX}encoder.layers.0"
    for missing, name in ((f"{block}.layer_norm.bias", "layer_norm.bias"), ("adapters.0.ff.0.bias", "norm.bias")):
        with pytest.raises(ValueError, match=name):
            from_original(bare({key: value for key, value in state.items() if key != missing}, tmp_path), folder)
    for unknown, name in ((f"{block}.attention.gate", "gate"), ("prenet.weight", "prenet")):
        with pytest.raises(ValueError, match=name):
            from_original(bare({**state, unknown: torch.zeros(1)}, tmp_path), folder)


def test_tensors_for_init_from(folder: Path, state: State, tmp_path: Path) -> None:
    results = original_state(bare(state, tmp_path))
    separate = {f"encoder.{key}": value for key, value in cleaner().state_dict().items()}
    adapters = {key for key in separate if key.startswith("encoder.adapters.")}
    assert adapters <= set(results)
    assert all(results[key].shape == separate[key].shape for key in adapters)
    assert torch.equal(results["encoder.adapters.blocks.1.up.bias"], state["adapters.1.ff.3.bias"])
    assert not any("final_layer_norm" in key for key in results)


SIZES = {
    "upsample_rates": [7, 7, 3, 3], "upsample_kernel_sizes": [15, 15, 7, 7], "upsample_initial_channel": 16,
    "resblock": "2", "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 2]],
}  # fmt: skip


def generator(front: Any = None) -> Generator:
    torch.manual_seed(0)
    return parts.generator(conditioner=front).eval()


def nets_of(model: Generator) -> tuple[State, State]:
    """Prenet and generator as the older training script names them."""
    full = to_original_names(model.state_dict())
    prenet = {key.removeprefix("conditioner."): value for key, value in full.items() if key.startswith("conditioner.")}
    return (
        {**prenet, "scale": torch.tensor(model.conditioner.scale)},
        {key: value for key, value in full.items() if not key.startswith("conditioner.")},
    )


def assert_sounds_alike(path: Path, model: Generator, **arguments: Any) -> Generator:
    x = torch.randn(1, 32, 6, generator=torch.Generator().manual_seed(3))
    results = vocoder_from_original(path, **arguments)
    with torch.no_grad():
        assert torch.equal(results(x), model(x))
    return results


@pytest.mark.parametrize("layers", [0, 1])
def test_older_vocoder_layouts(tmp_path: Path, layers: int) -> None:
    model = generator(PrenetConditioner(32, 80, layers=layers))
    prenet, plain = nets_of(model)
    mpd, msd = MultiPeriodDiscriminator(channel_mult=1 / 32), MultiScaleDiscriminator(channel_mult=1 / 32)
    critics = {"mpd": to_original_names(mpd.state_dict()), "msd": to_original_names(msd.state_dict())}
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "num_mels": 80}))
    modules = {**{f"prenet.{k}": v for k, v in prenet.items()}, **{f"generator.{k}": v for k, v in plain.items()}}
    contents = {
        "a.pt": {"prenet": prenet, "generator": plain, **critics, "steps": 5, "optim_g": {}, "optim_d": {}},
        "b.pt": {"generator_modules": modules, **critics, "steps": 5},
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
        results = assert_sounds_alike(tmp_path / name, model)
        assert isinstance(results.conditioner, PrenetConditioner)
        assert describe(tmp_path / name)["parts"][0] == "generator"
    start = original_state(tmp_path / "a.pt")
    assert {key.partition(".")[0] for key in start} == {"generator", "mpd", "msd"}
    msd.load_state_dict({key.removeprefix("msd."): value for key, value in start.items() if key.startswith("msd.")})
    parts = [{f"module.{key}": value for key, value in net.items()} for net in (prenet, plain, *critics.values())]
    folder = accelerate(tmp_path / "checkpoint_96k", parts, unsafe=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, "num_mels": 80}))
    assert_sounds_alike(folder, model)
    assert (describe(folder)["step"], describe(folder)["parts"]) == (96000, ["generator", "mpd", "msd"])


def test_file_of_state_dicts(tmp_path: Path) -> None:
    model = generator()
    torch.save({"model_state_dict": to_original_names(model.state_dict()), "opt_d_state_dict": {}}, tmp_path / "c.pt")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        vocoder_from_original(tmp_path / "c.pt")
    assert_sounds_alike(tmp_path / "c.pt", model, config=SIZES)


def test_averaged_weights(tmp_path: Path) -> None:
    live, average = generator(PrenetConditioner(32, 80, layers=1)), generator(PrenetConditioner(32, 80, layers=1))
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(0.9)
    contents = [
        {**{f"prenet.{k}": v for k, v in prenet.items()}, **{f"generator.{k}": v for k, v in plain.items()}}
        for prenet, plain in (nets_of(live), nets_of(average))
    ]
    shadow = {key: value for key, value in contents[1].items() if "running" not in key and "num_" not in key}
    shadow.pop("prenet.scale")
    torch.save({"generator_modules": contents[0], "ema_g": shadow, "steps": 7}, tmp_path / "c.pt")
    config = {**SIZES, "num_mels": 80}
    assert_sounds_alike(tmp_path / "c.pt", live, config=config, ema=False)
    assert_sounds_alike(tmp_path / "c.pt", average, config=config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "c.pt", tmp_path / "ours.ckpt")
    actual = torch.load(tmp_path / "ours.ckpt", weights_only=True)
    name = "generator.conv_pre.bias"
    assert torch.equal(actual["state_dict"][name], live.conv_pre.bias)
    assert torch.equal(actual["ema"]["shadow"][name], average.conv_pre.bias)


def test_unified_folder(folder: Path, state: State, tmp_path: Path) -> None:
    model = generator(ConformerConditioner(32, 16, 24, 4, 32, 7))
    repository = tmp_path / "repository"
    repository.mkdir()
    torch.save({"step": 199000, "model_state_dict": state}, repository / "checkpoint_199k_fixed.pt")
    to_original(model, repository / "epoch=77-step=137108.ckpt")
    described = {
        "model_type": "miipher2",
        "components": {
            "adapter": {"base_model": str(folder), "hubert_layer": 2, "checkpoint_file": "checkpoint_199k_fixed.pt"},
            "vocoder": {"checkpoint_file": "epoch=77-step=137108.ckpt"},
        },
        "output_sampling_rate": 22050,
    }
    (repository / "config.json").write_text(json.dumps(described))
    assert_sounds_alike(repository, model)
    facts = describe(repository)
    assert (facts["format"], facts["adapters"], facts["hubert_layer"]) == ("unified", "2 of 24", 2)
    assert {key.partition(".")[0] for key in original_state(repository)} == {"encoder", "generator"}
    report = convert(repository, tmp_path / "exported")
    assert report["step"] == 199000
    restorer = zoo.load(tmp_path / "exported")
    assert restorer(np.zeros((1, 1600), np.float32), 16000).shape == (1, 2205)
    back = convert(tmp_path / "exported", tmp_path / "back", backbone=folder)
    assert any("no weight norm" in note for note in back["notes"])
    x = torch.randn(1, 32, 6, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(vocoder_from_original(tmp_path / "back")(x), model(x), atol=1e-5, rtol=0)
    assert torch.equal(features(from_original(tmp_path / "back")), features(from_original(repository)))


def test_a_vocoder_of_odd_stages_alone_becomes_an_export(tmp_path: Path) -> None:
    model = Generator(32, 16, (7, 7, 3, 3), (16, 16, 8, 8), "2", (3,), ((1, 2),), output_padding=0).eval()
    to_original(model, tmp_path / "vocoder.ckpt")
    assert "features" in convert(tmp_path / "vocoder.ckpt", tmp_path / "exported")["notes"][0]
    vocoder = zoo.load(tmp_path / "exported")
    assert vocoder.generator.output_padding == 0
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(3)).numpy()
    with torch.no_grad():
        expected = model(torch.from_numpy(x)[None])[0, 0].numpy()
    np.testing.assert_allclose(vocoder.from_mel(x), expected, atol=1e-5)
    assert "from_mel" in (tmp_path / "exported" / "README.md").read_text()
    assert "--init_from" in convert(tmp_path / "vocoder.ckpt", tmp_path / "ours.ckpt")["notes"][0]


def test_what_the_originals_cannot_hold(folder: Path, state: State, tmp_path: Path) -> None:
    convert(bare(state, tmp_path), tmp_path / "ours.ckpt", backbone=folder)
    (tmp_path / "mine").mkdir()
    for match, refuse in (
        (r"in a \.ckpt file", lambda: to_original(generator(), tmp_path / "vocoder.pt")),
        ("no encoder like", lambda: to_original(cleaner("mel_hubert"), tmp_path / "x.pt")),
        ("neither normalize", lambda: to_original(cleaner(normalize=True), tmp_path / "x.pt")),
        ("neither normalize", lambda: to_original(cleaner(layer=3, final_norm=True), tmp_path / "x.pt")),
        ("found Vocos", lambda: to_original(Vocos(4, 8, 12, 2, 16, 4), tmp_path / "x.ckpt")),
        (r"a vocoder into a \.ckpt", lambda: convert(tmp_path / "ours.ckpt", tmp_path / "x.ckpt")),
        ("no Miipher-2 folder", lambda: convert(tmp_path / "ours.ckpt", tmp_path / "mine")),
    ):
        with pytest.raises(ValueError, match=match):
            refuse()


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"generator": {"conv_pre.weight": torch.zeros(1)}}, tmp_path / "g_00000001")
    (tmp_path / "text.txt").write_text("hello")
    torch.save({"state_dict": {0: torch.zeros(1)}}, tmp_path / "numbered.pt")
    unified = tmp_path / "unified"
    unified.mkdir()
    described = {"model_type": "miipher2", "components": {"adapter": {"checkpoint_file": "../secret.pt"}}}
    (unified / "config.json").write_text(json.dumps(described))
    for path in (*tmp_path.iterdir(), tmp_path, tmp_path / "absent"):
        assert not is_original(path)
    with pytest.raises(ValueError, match="names a file beside it"):
        describe(unified)


ADAPTER_YAML = """
model: {hubert_model_name: microsoft/wavlm-base, hubert_layer: 2, adapter_hidden_dim: 768, model_type: hubert}
dataset: {path_pattern: "jvs-{000000..000025}.tar.gz", shuffle: 1000}
batch_size: 8
steps: 6e4
validation_interval: 1e3
training: {gradient_accumulation_steps: 2, mixed_precision: fp16}
optim: {lr: 2e-4, weight_decay: 0.01, betas: [0.9, 0.95], max_grad_norm: 1.0, scheduler: SCHEDULER}
loader: {num_workers: 8, pin_memory: true}
"""
CONSTANT = "{name: constant_with_warmup, warmup_steps: 1e2}"
RESTARTS = "{name: cosine_with_restarts, warmup_steps: 10000, first_cycle_steps: 1e5, cycle_mult: 1.0, min_lr: 1.0e-6}"


def test_adapter_configurations(tmp_path: Path) -> None:
    path = tmp_path / "adapter.yaml"
    path.write_text(ADAPTER_YAML.replace("SCHEDULER", CONSTANT))
    recipe, unmapped = convert_config(path)
    assert unmapped == ["dataset.path_pattern", "dataset.shuffle"]
    trainer = recipe["trainer"]
    assert trainer["precision"] == "16-mixed"
    assert (trainer["max_steps"], trainer["val_check_interval"], trainer["accumulate_grad_batches"]) == (30000, 1000, 2)
    assert isinstance(trainer["val_check_interval"], int)  # a float would be a share of an epoch
    assert recipe["checkpoints"]["every_n_steps"] == 500
    arguments = recipe["model"]["init_args"]
    assert arguments["encoder"]["init_args"]["backbone"]["init_args"]["family"] == "wavlm_as_hubert"
    assert arguments["optimizer"]["init_args"]["lr"] == 2e-4
    assert arguments["scheduler"]["init_args"] == {"warmup_steps": 100}
    path.write_text(ADAPTER_YAML.replace("SCHEDULER", RESTARTS) + "accelerate: {fsdp: null}\n")
    recipe, unmapped = convert_config(path)
    assert recipe["model"]["init_args"]["scheduler"]["init_args"] == {"T_0": 100000, "T_mult": 1, "eta_min": 1e-6}
    assert "optim.scheduler.warmup_steps" in unmapped and any("hubert_layer" in line for line in unmapped)
