"""Policies of other libraries: tiny files as stable-baselines3 and CleanRL lay them out, written here by hand."""

import base64
import json
import pickle
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.compressed_ad.convert.policies import LOWEST, Policies, find_policies, import_policies, read_policy
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.envs.schema import Discrete, box

ROOM, POINTS = Darkroom(3, 4), PointMass(2, 4)


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def stack(sizes: list[int], seed: int, activation: type[nn.Module] = nn.Tanh, last: bool = False) -> nn.Sequential:
    """Linear layers with activations between them, and behind them unless `last` is the output."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, width in pairwise(sizes):
        layers += [nn.Linear(before, width), activation()]
    return nn.Sequential(*(layers[:-1] if last else layers))


def named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in module.state_dict().items()}


def write_zip(path: Path, state: Any, trap: Path | None = None, **data: Any) -> Path:
    """A file of stable-baselines3; what it pickles into `data` is there, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blob = base64.b64encode(pickle.dumps(Trap(trap or path.parent / "touched"))).decode()
    kept = {"policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": blob}, "use_sde": False, **data}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(kept))
        for name, content in (("pytorch_variables", None), ("policy", state), ("policy.optimizer", {})):
            with archive.open(f"{name}.pth", mode="w", force_zip64=True) as file:
                torch.save(content, file)
        archive.writestr("_stable_baselines3_version", "2.3.2")
        archive.writestr("system_info.txt", "- OS: any")
    return path


def ppo(seed: int, inputs: int = 2, actions: int = 5) -> tuple[nn.Sequential, dict[str, Tensor]]:
    body, head, critic = stack([inputs, 8, 8], seed), nn.Linear(8, actions), nn.Linear(8, 1)
    state = {**named("mlp_extractor.policy_net.", body), **named("mlp_extractor.value_net.", body)}
    return nn.Sequential(body, head), {**state, **named("action_net.", head), **named("value_net.", critic)}


def test_checkpoints_in_the_order_of_their_training_are_a_history(tmp_path: Path) -> None:
    nets = []
    for seed, (name, order) in enumerate([("best_model", 100), ("a_late", 900)]):
        net, state = ppo(seed)
        nets.append(net)
        write_zip(tmp_path / "from" / "7" / f"{name}.zip", state, num_timesteps=order)
    import_policies(tmp_path / "from", tmp_path / "store", ROOM, episodes=4, streams=3, greedy=True)
    store = HistoryStore(tmp_path / "store")
    assert store.tasks.tolist() == [[2, 1]] and not list((tmp_path / "from" / "7").glob("touched"))
    assert [name for name, _ in store.index["source"]["files"]["7"]] == ["best_model.zip", "a_late.zip"]
    rows = store.read(0, slice(None))
    for net, part in zip(nets, (slice(0, 8), slice(8, 16)), strict=True):
        wanted = net(torch.from_numpy(rows[:, part, :2]).float()).argmax(-1)
        assert np.array_equal(rows[:, part, 2], wanted)
    assert np.array_equal(rows[:, 1:4, :2], rows[:, :3, 4:6]) and rows[:, :, 6].sum() == 3 * 4
    write_zip(tmp_path / "from" / "7" / "a_late.zip", ppo(5)[1], num_timesteps=900)
    with pytest.raises(ValueError, match="begun with other settings"):
        import_policies(tmp_path / "from", tmp_path / "store", ROOM, episodes=4, streams=3, greedy=True)


def test_cleanrl_between_bounds(tmp_path: Path) -> None:
    mean = stack([2, 8, 8, 2], 3, last=True)
    state = {**named("critic.", stack([2, 8, 8, 1], 1, last=True)), **named("actor_mean.", mean)}
    (tmp_path / "from" / "1").mkdir(parents=True)
    path = tmp_path / "from" / "1" / "ppo_continuous_action.cleanrl_model"
    torch.save({**state, "actor_logstd": torch.full((1, 2), 0.5)}, path)
    import_policies(tmp_path / "from", tmp_path / "store", POINTS, steps=8, streams=2, greedy=True)
    rows = HistoryStore(tmp_path / "store").read(0, slice(None))
    with torch.no_grad():
        wanted = mean(torch.from_numpy(rows["state"].copy())).clamp(-1, 1)
    np.testing.assert_allclose(rows["action"], wanted, rtol=1e-5, atol=1e-6)
    drawn = Policies({1: [path]}, normalise=True).histories(POINTS, POINTS.tasks()[1:], [5], streams=2, steps=8)
    again = Policies({1: [path]}, normalise=True).histories(POINTS, POINTS.tasks()[1:], [5], streams=2, steps=8)
    assert np.array_equal(drawn, again) and not np.array_equal(drawn[0, 0]["action"], drawn[0, 1]["action"])


def actors(folder: Path) -> dict[str, tuple[Path, nn.Sequential]]:
    """A file of each other kind, and the net that tells its mean or values."""
    relu = stack([2, 8, 8, 3], 1, nn.ReLU, last=True)
    body, mu, log_std = stack([2, 8, 8], 2, nn.ReLU), nn.Linear(8, 3), nn.Linear(8, 3)
    parts = {f"fc{number + 1}": layer for number, layer in enumerate((relu[0], relu[2]))} | {"fc_mu": relu[4]}
    td3: dict[str, Tensor] = {}
    for name, layer in parts.items():
        td3 |= named(f"{name}.", layer)
    td3 |= {"action_scale": torch.ones(3), "action_bias": torch.zeros(3)}
    elu = {":type:": "<class 'dict'>", "activation_fn": "<class 'torch.nn.modules.activation.ELU'>"}
    sac = {**named("actor.latent_pi.", body), **named("actor.mu.", mu), **named("actor.log_std.", log_std)}
    shaped = stack([2, 8, 8, 3], 1, nn.ELU, last=True)
    files = {
        "dqn": (write_zip(folder / "dqn.zip", named("q_net.q_net.", relu), exploration_rate=0.3), relu),
        "elu": (write_zip(folder / "elu.zip", named("q_net.q_net.", shaped), policy_kwargs=elu), shaped),
        "sac": (write_zip(folder / "sac.zip", sac), nn.Sequential(body, mu)),
        "td3": (write_zip(folder / "td3.zip", named("actor.mu.", relu)), relu),
    }
    for name, content in (("cleanrl_dqn", named("network.", relu)), ("cleanrl_td3", (td3, {}, {}))):
        torch.save(content, folder / f"{name}.cleanrl_model")
        files[name] = (folder / f"{name}.cleanrl_model", relu)
    return files


@pytest.mark.parametrize("name", ["dqn", "elu", "sac", "td3", "cleanrl_dqn", "cleanrl_td3"])
def test_every_kind_does_what_its_library_does(tmp_path: Path, name: str) -> None:
    path, net = actors(tmp_path)[name]
    actor = read_policy(path)
    rows = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = net(rows)
    low, high = torch.tensor([-1.0, 0, -4]), torch.tensor([1.0, 3, 4])
    space = box((3,), "float32", low, high) if "squashed" in actor.kind else Discrete(3)
    width = 2 if isinstance(space, Discrete) else 3
    uniforms = torch.rand(width, 4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = Policies({}, greedy=True)._act(actor, space, rows, uniforms)
    if isinstance(space, Discrete):
        assert actor.kind == "values" and torch.equal(found, wanted.argmax(-1))
        drawn = Policies({}, epsilon=0.6)._act(actor, space, rows, uniforms)
        share = {"dqn": 0.3}.get(name, 0.6)  # the file's own where it says one
        assert (drawn != found).float().mean() == pytest.approx(share * 2 / 3, abs=0.03)
        return
    torch.testing.assert_close(found, (low + high) / 2 + wanted.tanh() * (high - low) / 2)
    drawn = Policies({})._act(actor, space, rows, uniforms)
    if name != "sac":
        assert torch.equal(drawn, found)
        return
    outputs, spread = actor.outputs(rows)
    before = ((drawn - (low + high) / 2) / ((high - low) / 2)).double().atanh()
    noise = ((before - outputs) / spread.exp())[outputs.abs().amax(1) < 1]
    assert noise.mean() == pytest.approx(0, abs=0.05) and noise.std() == pytest.approx(1, abs=0.05)
    assert spread.min() >= LOWEST


def test_logits_are_drawn_by_their_probabilities(tmp_path: Path) -> None:
    net, state = ppo(4)
    actor = read_policy(write_zip(tmp_path / "a.zip", state))
    rows = torch.tensor([[2.0, 1.0]]).expand(5000, -1)
    uniforms = torch.rand(2, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = Policies({})._act(actor, Discrete(5), rows, uniforms)
    with torch.no_grad():
        chances = net(rows[:1]).softmax(-1)[0]
    torch.testing.assert_close(torch.bincount(drawn, minlength=5) / 5000, chances, atol=0.03, rtol=0)


def test_nothing_pickled_is_executed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a matrix"):
        read_policy(write_zip(tmp_path / "a.zip", {"action_net.weight": Trap(tmp_path / "here")}))
    torch.save(Trap(tmp_path / "here"), tmp_path / "b.cleanrl_model")
    with pytest.raises(ValueError, match="expected the weights of a policy"):
        read_policy(tmp_path / "b.cleanrl_model")
    assert not (tmp_path / "here").exists() and not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("state", "data", "said"),
    [
        ({"features_extractor.cnn.0.weight": torch.zeros(4, 3, 8, 8)}, {}, "features extractor or shared layers"),
        (ppo(0)[1], {"use_sde": True}, "its noise depends on the state"),
        (ppo(0)[1], {"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.Mish'>"}}, "Mish; one of"),
        ({"quantile_net.0.weight": torch.zeros(2, 2)}, {}, "tensors are quantile_net.0.weight; PPO, A2C, DQN"),
        ({"action_net.weight": torch.zeros(2, 2)}, {}, "expected a matrix with a bias"),
    ],
)
def test_what_cannot_be_played_from_its_weights_is_refused(tmp_path: Path, state: Any, data: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_policy(write_zip(tmp_path / "a.zip", state, **data))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(ValueError, match=r"it has no policy\.pth or no data"):
        read_policy(tmp_path / "a.zip")
    torch.save(
        {"network.0.weight": torch.zeros(8, 4, 3, 3), "network.0.bias": torch.zeros(8)}, tmp_path / "a.cleanrl_model"
    )
    with pytest.raises(ValueError, match="no nets for pictures"):
        read_policy(tmp_path / "a.cleanrl_model")
    torch.save(torch.zeros(3), tmp_path / "b.cleanrl_model")
    with pytest.raises(ValueError, match=r"expected the weights of a policy \(a state dict\), found Tensor"):
        read_policy(tmp_path / "b.cleanrl_model")
    torch.save(
        {"actor_mean.0.weight": torch.zeros(2, 2), "actor_mean.0.bias": torch.zeros(2)}, tmp_path / "b.cleanrl_model"
    )
    with pytest.raises(ValueError, match="actor_logstd is missing"):
        read_policy(tmp_path / "b.cleanrl_model")
    (tmp_path / "b.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"b\.zip: damaged, or no file of stable-baselines3"):
        read_policy(tmp_path / "b.zip")
    torch.save({"lstm.weight": torch.zeros(3)}, tmp_path / "b.cleanrl_model")
    with pytest.raises(ValueError, match="ppo_continuous_action, dqn, td3"):
        read_policy(tmp_path / "b.cleanrl_model")


def test_policies_of_other_environments_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", ppo(0, inputs=3)[1])
    with pytest.raises(ValueError, match="sees 3 numbers, the environment shows"):
        Policies({0: [path]}).check(ROOM, 40)
    path = write_zip(tmp_path / "a.zip", ppo(0, actions=4)[1])
    with pytest.raises(ValueError, match="tells 4 actions, the environment takes"):
        Policies({0: [path]}).check(ROOM, 40)
    net = {**named("actor_mean.", stack([2, 8, 8, 2], 3, last=True)), "actor_logstd": torch.zeros(1, 3)}
    torch.save(net, tmp_path / "a.cleanrl_model")
    with pytest.raises(ValueError, match="3 deviations for an action of 2 numbers"):
        Policies({0: [tmp_path / "a.cleanrl_model"]}).check(POINTS, 40)
    with pytest.raises(ValueError, match="4 steps are too few for 2 policies in a row"):
        Policies({0: [path, path]}).check(ROOM, 4)


def test_folders_and_order(tmp_path: Path) -> None:
    for name in ("run_10.cleanrl_model", "run_9.cleanrl_model"):
        torch.save(named("network.", stack([2, 8, 5], 0, nn.ReLU, last=True)), tmp_path / name)
    assert [path.name for path in find_policies(tmp_path, 1)[0]] == ["run_9.cleanrl_model", "run_10.cleanrl_model"]
    with pytest.raises(ValueError, match="2 tasks need a folder each"):
        find_policies(tmp_path, 2)
    (tmp_path / "other_09.cleanrl_model").write_bytes((tmp_path / "run_9.cleanrl_model").read_bytes())
    with pytest.raises(ValueError, match="two policies of the same step"):
        find_policies(tmp_path, 1)
    (tmp_path / "other_09.cleanrl_model").rename(tmp_path / "other.cleanrl_model")
    with pytest.raises(ValueError, match="when in its training was it"):
        find_policies(tmp_path, 1)
    (tmp_path / "tasks" / "9").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"numbers of tasks, 0 to 8; found \['9'\]"):
        find_policies(tmp_path / "tasks", 9)
    with pytest.raises(FileNotFoundError, match="no policies"):
        find_policies(tmp_path / "none", 9)
