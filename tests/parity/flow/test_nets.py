import json
from pathlib import Path

import pytest
import torch

from tests.numeric import assert_agrees
from tests.parity.recorded import close
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.flow import ConditionalOT, Guidance, Solver, UNet
from zoo.flow.convert import convert, convert_config, describe, from_original, is_original, original_state, to_original
from zoo.flow.process.guidance import velocity_field
from zoo.training.schedules import WarmupConstant


@pytest.fixture(scope="module")
def golden(folder: Path) -> dict:
    return load_foreign_checkpoint(folder / "golden.pt")


@pytest.fixture
def net(folder: Path) -> UNet:
    return from_original(folder / "cfg_fmsave.ckpt")


def test_full_size_net_has_the_originals_names_and_parameters(folder):
    full = json.loads((folder / "full_keys.json").read_text())
    with torch.device("meta"):
        state = UNet().state_dict()
    assert {f"network.{key}": list(value.shape) for key, value in state.items()} == full["keys"]
    assert [f"network.{key}" for key in state] == list(full["keys"])
    assert sum(value.numel() for value in state.values()) == full["n_params"] == 58_755_331


def test_velocities(folder, golden, net):
    unconditional = from_original(folder / "nocfg_fmsave.ckpt")

    @torch.no_grad()
    def evaluate(net, unconditional, x, t, label):
        dropped, null = (net(x, t, torch.full_like(label, value)) for value in (-1, 0))
        return net(x, t, label), net(x, t), dropped, null, unconditional(x, t)

    recorded = tuple(golden[f"v_{name}"] for name in ("cond", "none", "none", "null", "uncond_model"))
    inputs = net, unconditional, golden["x"], golden["t"], golden["label"]
    assert_agrees(evaluate, *inputs, recorded=recorded, atol=1e-5)


def test_path_and_target(golden):
    path = ConditionalOT(golden["sigma_min"])
    close(path.sample(golden["x0"], golden["x1"], golden["t"]), golden["psi_t"], 1e-6)
    close(path.target(golden["x0"], golden["x1"], golden["t"]), golden["target"], 1e-6)


@pytest.mark.parametrize(
    ("key", "guidance", "labelled", "name"),
    [
        ("traj_cfg7.5", Guidance(7.5, null_mode="none"), True, "cfg"),
        ("traj_cfg7.5_nulllabel_variant", Guidance(7.5), True, "cfg"),
        ("traj_scale1", None, False, "cfg"),
        ("traj_uncond_model", None, False, "nocfg"),
    ],
)
def test_trajectories(folder, golden, key, guidance, labelled, name):
    net = from_original(folder / f"{name}_fmsave.ckpt")

    def evaluate(net, x0):
        field = velocity_field(net, ConditionalOT(0.001), golden["label"] if labelled else None, guidance)
        solution = Solver("euler", 5).solve(field, x0, keep_trajectory=True)
        assert solution.nfe == 5
        return torch.stack(solution.trajectory)

    assert_agrees(evaluate, net, golden[key][0], recorded=golden[key], atol=1e-4)


def test_loss_and_gradients(golden, net):
    loss = (net(golden["psi_t"], golden["t"], golden["label"]) - golden["target"]).square().mean()
    close(loss, golden["loss_eval"], 1e-5)
    loss.backward()
    close(net.head.weight.grad, golden["grad_head_weight"], 1e-5)
    close(net.class_embedding.weight.grad, golden["grad_class_embedding"], 1e-5)


def test_five_steps_of_adam(golden, net):
    trace = golden["train"]
    path = ConditionalOT(0.001)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    schedule = WarmupConstant(optimizer, 199)
    for step in range(5):
        assert schedule.get_last_lr()[0] == pytest.approx(float(trace["lrs"][step]), rel=1e-9)
        x0, x1, t = trace["x0"][step], trace["x1"][step], trace["t"][step]
        loss = (net(path.sample(x0, x1, t), t, trace["label"][step]) - path.target(x0, x1, t)).square().mean()
        close(loss.detach(), trace["losses"][step], 1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    close(net.head.weight.detach(), trace["head_weight_after"], 1e-5)


def test_toy_net(folder):
    golden = load_foreign_checkpoint(folder / "toy.pt")
    net = from_original(folder / "simplenet_fmsave.ckpt")
    with torch.no_grad():
        close(net(golden["x"], golden["t"]), golden["v"], 1e-5)
    solution = Solver("euler", 5).solve(
        velocity_field(net, ConditionalOT(0.01)), golden["traj"][0], keep_trajectory=True
    )
    close(torch.stack(solution.trajectory), golden["traj"], 1e-5)


@pytest.mark.parametrize("name", ["cfg", "nocfg", "simplenet"])
def test_round_trip(folder, tmp_path, name):
    source = folder / f"{name}_fmsave.ckpt"
    before = load_foreign_checkpoint(source)["state_dict"]
    to_original(from_original(source), tmp_path / "net.pt")
    convert(source, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back.pt")
    for file in ("net.pt", "back.pt"):
        after = torch.load(tmp_path / file, weights_only=True)["state_dict"]
        assert list(after) == list(before)
        assert all(torch.equal(after[key], before[key]) for key in before)
        assert is_original(tmp_path / file)


def test_what_the_files_state(folder):
    facts = describe(folder / "cfg_fmsave.ckpt")
    assert facts["format"] == "fm.save" and facts["net"] == "UNet"
    assert facts["settings in the file"] == {
        "image_resolution": 12,
        "use_cfg": True,
        "cfg_dropout": 0.1,
        "sigma_min": 0.001,
        "num_train_timesteps": 1000,
        "dropout": 0.1,
    }
    assert describe(folder / "simplenet_fmsave.ckpt")["settings in the file"]["sigma_min"] == 0.01
    assert from_original(folder / "cfg_fmsave.ckpt", image_resolution=24).sample_shape == (3, 24, 24)
    assert all(key.startswith("net.") for key in original_state(folder / "cfg_fmsave.ckpt"))
    assert not is_original(folder / "golden.pt") and not is_original(folder / "meta.json")
    with pytest.raises(ValueError, match="no configuration of the flow matching lineage"):
        convert_config(folder / "meta.json")
