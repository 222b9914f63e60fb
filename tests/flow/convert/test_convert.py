import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from tests.harness import same_state
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.convert.engine import NO_TRAINING
from zoo.flow import DiT, FlowTask, ToyNet, UNet
from zoo.flow.convert import convert, convert_config, describe, from_original, is_original, to_original
from zoo.flow.convert.recipe import FLAGS, options, recipe_path
from zoo.flow.nets.dit import sine_table
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.init_from import read_weights

SIZES = [
    {"channel_mult": (1, 2, 2), "attention_levels": (1,), "res_blocks": 2, "num_classes": 3},
    {"channel_mult": (1, 1), "attention_levels": (0, 1), "res_blocks": 1, "num_classes": 0},
    {"channel_mult": (2,), "attention_levels": (), "res_blocks": 3, "num_classes": 10, "in_channels": 1},
]


def lineage_net(**sizes) -> UNet:
    """A net that computes as the lineage's do."""
    torch.manual_seed(0)
    return UNet(image_resolution=16, channels=32, time_scale=1.0, norm_groups=32, **sizes).eval()


def state_of(net: nn.Module, prefix: str = "network.") -> dict[str, torch.Tensor]:
    return {prefix + key: value for key, value in net.state_dict().items()}


@pytest.fixture
def net() -> UNet:
    return lineage_net(**SIZES[0])


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_come_from_the_tensors(tmp_path, sizes):
    net = lineage_net(**sizes)
    torch.save(state_of(net), tmp_path / "flat.ckpt")
    again = from_original(tmp_path / "flat.ckpt", image_resolution=16)
    assert same_state(net, again) and not again.training
    for name in ("channel_mult", "attention_levels", "res_blocks", "num_classes", "sample_shape"):
        assert getattr(again, name) == getattr(net, name), name
    x, t = torch.randn(2, *net.sample_shape), torch.rand(2)
    assert torch.equal(net(x, t), again(x, t))
    assert from_original(tmp_path / "flat.ckpt").sample_shape[1:] == (64, 64)


def test_perceptual_loss_is_left_out(tmp_path, net):
    state = state_of(net) | {"lpips_fn.net.slice1.0.weight": torch.zeros(2)}
    torch.save({"hparams": {}, "state_dict": state}, tmp_path / "student.ckpt")
    assert same_state(net, from_original(tmp_path / "student.ckpt"))
    assert describe(tmp_path / "student.ckpt")["left out"] == "1 tensors of a perceptual loss"


def test_init_from_asks_the_converter_about_a_file_named_ckpt(tmp_path, net):
    to_original(net, tmp_path / "a.ckpt")
    assert set(read_weights(tmp_path / "a.ckpt", FlowTask)[0]) == {f"net.{key}" for key in net.state_dict()}


def test_toy_net_there_and_back(tmp_path):
    toy = ToyNet(2, (8, 4), time_scale=1.0)
    to_original(toy, tmp_path / "toy.pt")
    assert same_state(toy, from_original(tmp_path / "toy.pt"))


def test_checkpoint_there_and_back(tmp_path, net):
    to_original(net, tmp_path / "a.pt", {"sigma_min": 0.01, "cfg_dropout": 0.2})
    facts = convert(tmp_path / "a.pt", tmp_path / "ours.ckpt")
    assert facts["notes"] == [NO_TRAINING]
    checkpoint = load_checkpoint(tmp_path / "ours.ckpt")
    parts = checkpoint["zoo"]["components"]
    assert build(parts["path"]).sigma_min == 0.01
    actual = build(parts["net"])
    actual.load_state_dict({key.removeprefix("net."): value for key, value in checkpoint["state_dict"].items()})
    assert same_state(actual, net)
    latent = {**checkpoint, "zoo": {**checkpoint["zoo"], "components": {**parts, "latents": parts["path"]}}}
    torch.save(latent, tmp_path / "latent.ckpt")
    with pytest.raises(ValueError, match="the original has no latents"):
        convert(tmp_path / "latent.ckpt", tmp_path / "back.pt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back.pt")
    before, after = (torch.load(tmp_path / name, weights_only=True) for name in ("a.pt", "back.pt"))
    known = {"sigma_min": 0.01, "image_resolution": 16, "use_cfg": True, "cfg_dropout": 0.2}
    assert before["hparams"] == after["hparams"] and before["hparams"].items() >= known.items()
    assert list(before["state_dict"]) == list(after["state_dict"])
    assert all(torch.equal(before["state_dict"][key], after["state_dict"][key]) for key in before["state_dict"])
    assert is_original(tmp_path / "a.pt") and not is_original(tmp_path / "ours.ckpt")


def test_export_and_what_was_assumed(tmp_path, net):
    torch.save(state_of(net, "module._orig_mod.network."), tmp_path / "last.ckpt")
    assert describe(tmp_path / "last.ckpt")["format"] == "accelerate"
    facts = convert(tmp_path / "last.ckpt", tmp_path / "export")
    assert [note.split()[0] for note in facts["notes"]] == ["image_resolution", "sigma_min"]
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert list(build(config["components"]["net"]).state_dict()) == list(net.state_dict())


def test_nets_that_the_lineage_would_compute_otherwise_are_refused(tmp_path):
    net = UNet(8, channels=32, channel_mult=(1,), attention_levels=(), res_blocks=1, time_scale=1.0)
    for module, message in ((ToyNet(), r"time_scale 1000\.0"), (net, r"groups \[8, 16\]")):
        with pytest.raises(ValueError, match=message):
            to_original(module, tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()


def test_damaged_states_are_refused(tmp_path, net):
    state = state_of(net)
    without_block = {key: value for key, value in state.items() if not key.startswith("network.downblocks.7.")}
    for damaged, message in (
        ({**state, "network.extra": torch.zeros(1)}, "unexpected extra"),
        ({**state, "network.tail.2.bias": torch.zeros(4)}, r"tail\.2\.bias is \(4,\), expected \(3,\)"),
        (without_block, "equal numbers"),
        ({**state, "other": torch.zeros(1)}, "unknown layout with keys other"),
    ):
        torch.save(damaged, tmp_path / "bad.ckpt")
        with pytest.raises(ValueError, match=message):
            from_original(tmp_path / "bad.ckpt")


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"state_dict": {"net.gain": torch.zeros(1)}}, {}])
def test_unknown_files_are_no_originals(tmp_path: Path, content):
    torch.save(content, tmp_path / "strange.pt")
    assert not is_original(tmp_path / "strange.pt")
    assert not is_original(tmp_path / "absent.pt") and not is_original(tmp_path)
    with pytest.raises(ValueError, match=r"strange\.pt"):
        describe(tmp_path / "strange.pt")


def test_training_flags_become_a_recipe(tmp_path):
    flags = {
        "use_cfg": True,
        "batch_size": 16,
        "train_num_steps": 1001,
        "warmup_steps": 200,
        "gradient_accumulation_steps": 2,
        "mixed_precision": "fp16",
        "sigma_min": 0.01,
        "seed": 5,
        "gpu": 0,
    }
    (tmp_path / "config.json").write_text(json.dumps(flags))
    recipe, unmapped = convert_config(tmp_path / "config.json")
    assert [line.split(":")[0] for line in unmapped] == ["gpu"]
    assert recipe["seed_everything"] == 5
    trainer = {key: recipe["trainer"][key] for key in ("max_steps", "accumulate_grad_batches", "precision")}
    assert trainer == {"max_steps": 501, "accumulate_grad_batches": 2, "precision": "16-mixed"}
    model = OmegaConf.to_container(OmegaConf.create(recipe), resolve=True)["model"]["init_args"]
    assert build(model["path"]).sigma_min == 0.01
    assert model["scheduler"]["init_args"] == {"warmup_steps": 199}
    assert recipe["data"]["init_args"]["batch_size"] == 16
    (tmp_path / "config.json").write_text(json.dumps(flags | {"use_cfg": False}))
    model = convert_config(tmp_path / "config.json")[0]["model"]["init_args"]
    assert model["net"]["init_args"]["num_classes"] == 0 and model["guidance"] is None and model["label_drop"] == 0


def test_other_configurations_are_refused(tmp_path):
    for content, message in (
        ("[1, 2]", "must hold a table of settings"),
        ("{a: 1}", "lacks train_num_steps and batch_size"),
        ("a: b: c", "neither JSON nor YAML"),
        ("{train_num_steps: 1, batch_size: 1, mixed_precision: fp8}", "not 'fp8'"),
        ("{train_num_steps: 1, batch_size: 1, use_cfg: 'yes'}", "use_cfg is true or false"),
    ):
        (tmp_path / "config.yaml").write_text(content)
        with pytest.raises(ValueError, match=message):
            convert_config(tmp_path / "config.yaml")


def sit_state(net: DiT) -> dict[str, torch.Tensor]:
    """A net's weights as SiT names and orders them, with variances that it discards."""
    actual, side = net.state_dict(), net.sample_shape[1] // net.patch
    table = actual["class_embedding.weight"]
    state = {"pos_embed": sine_table(side, side, net.dim)[None]}
    state["y_embedder.embedding_table.weight"] = torch.cat([table[1:], table[:1]])
    for kind in ("weight", "bias"):
        state[f"x_embedder.proj.{kind}"] = actual[f"patches.{kind}"]
        state[f"final_layer.adaLN_modulation.1.{kind}"] = actual[f"norm.linear.{kind}"]
        pixels = actual[f"tail.{kind}"].unflatten(0, (net.patch**2, -1))
        state[f"final_layer.linear.{kind}"] = torch.cat([pixels, torch.randn_like(pixels)], dim=1).flatten(0, 1)
        for layer in (0, 2):
            state[f"t_embedder.mlp.{layer}.{kind}"] = actual[f"time_embedding.mlp.{layer}.{kind}"]
        for block in range(len(net.blocks)):
            for reference, name in (
                ("attn.qkv", "qkv"),
                ("attn.proj", "out"),
                ("mlp.fc1", "feed_forward.0"),
                ("mlp.fc2", "feed_forward.2"),
                ("adaLN_modulation.1", "modulation.linear"),
            ):
                state[f"blocks.{block}.{reference}.{kind}"] = actual[f"blocks.{block}.{name}.{kind}"]
    return state


def test_sit_is_read(tmp_path):
    torch.manual_seed(0)
    net = DiT(8, 4, depth=2, dim=64, heads=1, num_classes=5, time_scale=1.0).eval()
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.1)
    for name, content in (("flat.pt", sit_state(net)), ("run.pt", {"model": {}, "ema": sit_state(net), "opt": {}})):
        torch.save(content, tmp_path / name)
        again = from_original(tmp_path / name)
        assert same_state(net, again) and again.sample_shape == (4, 8, 8)
        x, t, label = torch.randn(2, 4, 8, 8), torch.rand(2), torch.tensor([0, 5])
        assert torch.equal(net(x, t, label), again(x, t, label))
    report = convert(tmp_path / "run.pt", tmp_path / "ours.ckpt")
    assert "read as SiT" in report["notes"][0] and describe(tmp_path / "flat.pt")["format"] == "SiT"
    torch.save(sit_state(net) | {"pos_embed": torch.zeros(1, 16, 64)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="pos_embed is not the table of sines of 4 x 4 patches"):
        describe(tmp_path / "other.pt")


def test_the_recipe_has_the_defaults_of_the_flags() -> None:
    recipe = load_recipe(recipe_path())
    for option, value in options({flag: setting.default for flag, setting in FLAGS.items()}, "defaults").items():
        section = recipe
        for key in option.split("."):
            section = section[key]
        assert section == value, option
