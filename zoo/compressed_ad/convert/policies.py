"""Policies that stable-baselines3 or CleanRL trained, as histories: their weights are read, and they play.

What these libraries leave behind has no transitions (`monitor.csv` and event files hold returns), so the checkpoints of
a training, in their order, play: that is a learning history, as fine as the checkpoints lie apart.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.common.hardware import process_rank
from zoo.common.locks import writes_into
from zoo.common.ranges import within
from zoo.common.reading.archives import open_checked
from zoo.common.reading.foreign import UnsafeFileError, load_foreign
from zoo.compressed_ad.collecting.base import STREAMS, Algorithm, EpsilonGreedy, Request, StepDraws
from zoo.compressed_ad.collecting.collect import collect
from zoo.compressed_ad.collecting.spaces import Moments
from zoo.compressed_ad.data.history import file_hash, recorder_of
from zoo.compressed_ad.envs.base import Env, tensor_dtype
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema

Kind = Literal["categorical", "values", "normal", "squashed normal", "squashed"]
SUFFIXES = (".zip", ".cleanrl_model")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": torch.tanh, "ReLU": F.relu, "ELU": F.elu, "LeakyReLU": F.leaky_relu, "SiLU": F.silu, "GELU": F.gelu,
}  # fmt: skip
LOWEST, HIGHEST = -20.0, 2.0  # of the logarithm of a deviation in SAC, as in stable-baselines3


class Actor(NamedTuple):
    """A policy.

    layers: weight (out, in) and bias (out,) of each.
    activation: name of what stands between the layers.
    kind: what the last layer tells: logits of actions, their values, the mean of a normal distribution, that before a
        hyperbolic tangent, or such an action itself.
    spread: logarithm of the deviation (A,), or the layer that tells it; None where there is none.
    epsilon: share of random actions with which values are followed; None where the file does not say.
    order: steps that it was trained for; None where the file does not say.
    """

    layers: list[tuple[Tensor, Tensor]]
    activation: str
    kind: Kind
    spread: Tensor | tuple[Tensor, Tensor] | None = None
    epsilon: float | None = None
    order: int | None = None

    def outputs(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the last layer tells of rows (B, F), (B, A), and logarithms of deviations."""
        for weight, bias in self.layers[:-1]:
            rows = ACTIVATIONS[self.activation](F.linear(rows, weight, bias))
        spread = self.spread
        if isinstance(spread, tuple):
            spread = F.linear(rows, *spread).clamp(LOWEST, HIGHEST)
        return F.linear(rows, *self.layers[-1]), spread


def read_policy(path: Path) -> Actor:
    """Read the policy of a `.zip` of stable-baselines3 or a `.cleanrl_model`; nothing in it is executed.

    Of a zip, `policy.pth` is read for its tensors and `data` for its plain JSON values; what is pickled in it is left
    alone. Of stable-baselines3 these are PPO, A2C, DQN, SAC, TD3 and DDPG with an `MlpPolicy`; of CleanRL `ppo`,
    `ppo_continuous_action`, `dqn`, `td3_continuous_action` and `ddpg_continuous_action`.

    Raises:
        FileNotFoundError: when there is no such file.
        UnsafeFileError: when it asks to run code, or is a bomb.
        ValueError: when it is something else, or a policy that cannot be played from its weights alone.
    """
    if path.suffix == SUFFIXES[0]:
        state, data = _read_zip(path)
        return _stable_baselines(path, state, data)
    content = load_foreign(path)
    if isinstance(content, (tuple, list)) and content:  # the actor, then its critics
        content = content[0]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected the weights of a policy (a state dict), found {type(content).__name__}")
    return _cleanrl(path, content)


def _read_zip(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as file, open_checked(file, stored=False) as archive:
            data, weights = json.loads(archive.read("data")), archive.read("policy.pth")
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / "policy.pth"
            inner.write_bytes(weights)
            state = load_foreign(inner)
    except KeyError as error:
        raise ValueError(f"{path}: no file of stable-baselines3, it has no policy.pth or no data ({error})") from error
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged, or no file of stable-baselines3 ({error})") from error
    if not isinstance(state, Mapping) or not isinstance(data, Mapping):
        raise ValueError(f"{path}: its policy.pth or data is no mapping; no file of stable-baselines3")
    return state, data


def _stable_baselines(path: Path, state: Mapping[str, Any], data: Mapping[str, Any]) -> Actor:
    """A policy by its tensors' names, and by what the library's settings say of it in plain text."""
    settings = data.get("policy_kwargs")
    settings = settings if isinstance(settings, Mapping) else {}
    told = re.search(r"\.(\w+)'>", str(settings.get("activation_fn", "")))
    order, epsilon = data.get("num_timesteps"), data.get("exploration_rate")
    if data.get("use_sde") or settings.get("squash_output") or any("sde" in str(name) for name in state):
        raise ValueError(f"{path}: its noise depends on the state (use_sde, squash_output), which is not read")
    if any("features_extractor." in name or "shared_net." in name for name in map(str, state)):
        raise ValueError(f"{path}: it has a features extractor or shared layers; an MlpPolicy without these is read")
    kind: Kind
    spread: Tensor | tuple[Tensor, Tensor] | None
    if "action_net.weight" in state:
        layers = [*_stack(path, state, "mlp_extractor.policy_net."), _layer(path, state, "action_net")]
        spread = _spread(path, state, "log_std") if "log_std" in state else None
        kind, usual = ("categorical" if spread is None else "normal"), "Tanh"
    elif _numbers(state, "q_net.q_net."):
        layers, spread, kind, usual = _stack(path, state, "q_net.q_net."), None, "values", "ReLU"
    elif "actor.log_std.weight" in state:
        layers = [*_stack(path, state, "actor.latent_pi."), _layer(path, state, "actor.mu")]
        spread, kind, usual = _layer(path, state, "actor.log_std"), "squashed normal", "ReLU"
    elif _numbers(state, "actor.mu."):
        layers, spread, kind, usual = _stack(path, state, "actor.mu."), None, "squashed", "ReLU"
    else:
        raise ValueError(f"{path}: {_unknown(state)}; PPO, A2C, DQN, SAC, TD3 and DDPG of stable-baselines3 are read")
    activation = told[1] if told else usual
    if activation not in ACTIVATIONS:
        raise ValueError(f"{path}: activation_fn {activation}; one of {', '.join(ACTIVATIONS)} is read")
    return Actor(
        layers, activation, kind, spread,
        float(epsilon) if isinstance(epsilon, (int, float)) else None,
        order if isinstance(order, int) else None,
    )  # fmt: skip


def _cleanrl(path: Path, state: Mapping[str, Any]) -> Actor:
    """A policy by its tensors' names."""
    if _numbers(state, "actor_mean."):
        return Actor(_stack(path, state, "actor_mean."), "Tanh", "normal", _spread(path, state, "actor_logstd"))
    if _numbers(state, "actor."):
        return Actor(_stack(path, state, "actor."), "Tanh", "categorical")
    if "fc_mu.weight" in state:
        return Actor([_layer(path, state, name) for name in ("fc1", "fc2", "fc_mu")], "ReLU", "squashed")
    if _numbers(state, "network.") and "actor.weight" not in state:
        return Actor(_stack(path, state, "network."), "ReLU", "values")
    known = "ppo, ppo_continuous_action, dqn, td3_continuous_action and ddpg_continuous_action of CleanRL are read"
    raise ValueError(f"{path}: {_unknown(state)}; {known}")


def _numbers(state: Mapping[str, Any], prefix: str) -> list[int]:
    """Numbers of the layers below a prefix, in order."""
    found = (re.fullmatch(re.escape(prefix) + r"(\d+)\.weight", str(name)) for name in state)
    return sorted(int(each[1]) for each in found if each)


def _stack(path: Path, state: Mapping[str, Any], prefix: str) -> list[tuple[Tensor, Tensor]]:
    return [_layer(path, state, f"{prefix}{number}") for number in _numbers(state, prefix)]


def _layer(path: Path, state: Mapping[str, Any], name: str) -> tuple[Tensor, Tensor]:
    weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or weight.ndim != 2 or bias.ndim != 1:
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else None
        raise ValueError(f"{path}: {name}.weight is {shape}, expected a matrix with a bias (no nets for pictures)")
    return weight.float(), bias.float()


def _spread(path: Path, state: Mapping[str, Any], name: str) -> Tensor:
    found = state.get(name)
    if not isinstance(found, Tensor):
        raise ValueError(f"{path}: {name} is missing, the logarithms of the deviations of actions")
    return found.float().reshape(-1)


def _unknown(state: Mapping[str, Any]) -> str:
    return f"no policy that is known, its tensors are {', '.join(map(str, list(state)[:6]))}"


@dataclass(frozen=True)
class Policies(Algorithm):
    """Lets the checkpoints of each task play, in their order, each for an equal share of the history.

    Args:
        files: of each task number, in order.
        greedy: do the likeliest instead of drawing.
        epsilon: share of random actions of those that tell values, where the file does not say.
        normalise: scale observations by what was seen so far, as wrappers of the training did whose statistics are not
            in the files (`VecNormalize`, `NormalizeObservation`).
    """

    name: ClassVar[str] = "policies"

    files: Mapping[int, Sequence[Path]]
    greedy: bool = False
    epsilon: float = 0.05
    normalise: bool = False

    def __post_init__(self) -> None:
        within(0, 1, epsilon=self.epsilon)

    def describe(self) -> dict[str, Any]:
        """Name and settings as JSON values, files by their names and contents."""
        files = {str(task): [[path.name, file_hash(path)] for path in paths] for task, paths in self.files.items()}
        settings = {"greedy": self.greedy, "epsilon": self.epsilon, "normalise": self.normalise}
        return {"name": self.name, "files": files, **settings}

    def check(self, env: Env, steps: int) -> None:
        """Read all policies, and see that they fit the environment and the length."""
        most = max(map(len, self.files.values()))
        if steps < most * env.schema.limit:
            raise ValueError(f"{steps} steps are too few for {most} policies in a row: give {most} episodes or more")
        for paths in self.files.values():
            for path in paths:
                _check(path, read_policy(path), env.schema)

    def make(self, request: Request) -> np.ndarray:
        """Play every task with its policies."""
        numbers = {tuple(task): number for number, task in enumerate(request.env.tasks().tolist())}
        parts = []
        for place, task in enumerate(request.tasks):
            alone = request._replace(tasks=task[None], seeds=request.seeds[place : place + 1])
            actors = [read_policy(path) for path in self.files[numbers[tuple(task.tolist())]]]
            parts.append(self._play(alone, actors))
        return np.concatenate(parts)

    @torch.no_grad()
    def _play(self, request: Request, actors: Sequence[Actor]) -> np.ndarray:
        """Histories (1, streams, ...) of one task; each stream goes on to the next policy at the end of an episode."""
        env, steps = request.env, request.steps
        space, seeds = env.schema.action, request.stream_seeds(STREAMS)
        envs = env.start(request.rows(), seeds)
        draws = StepDraws(seeds, 2 if isinstance(space, Discrete) else space.size)
        recorder = recorder_of(env, request.size, steps)
        moments = Moments(1, _width(env.schema, actors[0])) if self.normalise else None
        playing = torch.zeros(request.size, dtype=torch.int64)
        for step in range(steps):
            states, uniforms = envs.states, draws.next()
            rows = _rows(env.schema, actors[0], states)
            if moments is not None:
                moments.add(rows[None])
                rows = moments.scaled(rows[None])[0]
            actions = torch.zeros(request.size, *space.shape, dtype=tensor_dtype(space))
            for number in playing.unique().tolist():
                chosen = playing == number
                actions[chosen] = self._act(actors[number], space, rows[chosen], uniforms[:, chosen])
            taken = envs.step(actions)
            recorder.add(step, states, actions, taken)
            due = min(len(actors) - 1, (step + 1) * len(actors) // steps)
            playing = torch.where(taken.dones, due, playing)
            request.advance(request.size)
        return request.by_task(recorder.histories)

    def _act(self, actor: Actor, space: Discrete | Box, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Actions (B, *action) of a policy that sees rows (B, F), by numbers (n, B) in (0, 1)."""
        outputs, spread = actor.outputs(rows)
        if actor.kind == "values":
            share = self.epsilon if actor.epsilon is None else actor.epsilon
            return EpsilonGreedy.choose(outputs, uniforms, 0.0 if self.greedy else share)
        if actor.kind == "categorical":
            if self.greedy:
                return outputs.argmax(-1)
            shares = outputs.double().softmax(-1).cumsum(-1)[:, :-1]
            return (uniforms[0][:, None] > shares).sum(-1)
        assert isinstance(space, Box)
        if spread is not None and not self.greedy:
            outputs = outputs + spread.exp() * torch.special.ndtri(uniforms).float().T
        if actor.kind != "normal":
            low, high = (torch.tensor(bounds) for bounds in space.limits())
            outputs = (low + high) / 2 + outputs.tanh() * (high - low) / 2
        elif space.bounded:
            low, high = (torch.tensor(bounds) for bounds in space.limits())
            outputs = outputs.maximum(low).minimum(high)
        return outputs.reshape(-1, *space.shape).to(tensor_dtype(space))


def _width(schema: Schema, actor: Actor) -> int:
    return actor.layers[0][0].shape[1]


def _rows(schema: Schema, actor: Actor, states: Tensor) -> Tensor:
    """What a policy sees of states (B, ...): one-hot where it was trained so, else the numbers, (B, F) float32."""
    state = schema.observation
    if isinstance(state, Discrete) and _width(schema, actor) == state.n:
        return F.one_hot(states, state.n).float()
    return states.reshape(len(states), -1).float()


def _check(path: Path, actor: Actor, schema: Schema) -> None:
    """Refuse a policy that does not fit."""
    state, action = schema.observation, schema.action
    width, size = _width(schema, actor), actor.layers[-1][0].shape[0]
    if width not in ((1, state.n) if isinstance(state, Discrete) else (state.size,)):
        raise ValueError(f"{path}: it sees {width} numbers, the environment shows {json.dumps(state.describe())}")
    discrete = actor.kind in ("categorical", "values")
    if discrete != isinstance(action, Discrete) or size != (action.n if isinstance(action, Discrete) else action.size):
        told = f"{size} actions" if discrete else f"an action of {size} numbers"
        raise ValueError(f"{path}: it tells {told}, the environment takes {json.dumps(action.describe())}")
    if isinstance(action, Box) and actor.kind != "normal" and not action.bounded:
        raise ValueError(f"{path}: it tells actions between bounds, and those of the environment have none")
    for (weight, bias), (after, _) in zip(actor.layers, [*actor.layers[1:], actor.layers[-1]], strict=True):
        if weight.shape[0] != len(bias) or (after is not weight and after.shape[1] != weight.shape[0]):
            raise ValueError(f"{path}: its layers do not fit each other")
    spread = actor.spread[0] if isinstance(actor.spread, tuple) else actor.spread
    if spread is not None and len(spread) != size:
        raise ValueError(f"{path}: {len(spread)} deviations for an action of {size} numbers")


def find_policies(source: Path, count: int) -> dict[int, list[Path]]:
    """Checkpoints of each task below a folder, in the order of their training.

    Args:
        source: with a folder for each task, named by its number; where there is one task alone, the files lie in it.
        count: of the tasks.

    Raises:
        FileNotFoundError: when there are none.
        ValueError: when a folder is named otherwise, or files cannot be put into order.
    """
    if source.is_dir() and _files(source):
        found = {0: _files(source)}
        if count > 1:
            raise ValueError(f"{source}: {count} tasks need a folder each, named by its number: {source / '0'}, ...")
    else:
        folders = sorted(each for each in source.iterdir() if each.is_dir()) if source.is_dir() else []
        strange = [each.name for each in folders if not each.name.isdecimal() or int(each.name) >= count]
        if strange:
            raise ValueError(f"{source}: folders are named by numbers of tasks, 0 to {count - 1}; found {strange}")
        found = {int(each.name): _files(each) for each in folders if _files(each)}
    if not found:
        raise FileNotFoundError(f"{source}: no policies (*{', *'.join(SUFFIXES)})")
    return {task: _ordered(paths) for task, paths in sorted(found.items())}


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES)


def _ordered(paths: Sequence[Path]) -> list[Path]:
    """By the steps that a file says it was trained for, else by the last number in its name."""
    if len(paths) == 1:
        return list(paths)
    orders: dict[Path, int] = {}
    for path in paths:
        told, named = read_policy(path).order, re.findall(r"\d+", path.stem)
        if told is None and not named:
            raise ValueError(f"{path}: when in its training was it? Put the number of steps into its name")
        orders[path] = int(named[-1]) if told is None else told
    if len(set(orders.values())) < len(orders):
        same = {path.name: order for path, order in orders.items()}
        raise ValueError(f"{paths[0].parent}: two policies of the same step of their training, {same}")
    return sorted(paths, key=orders.__getitem__)


@writes_into("output", shared=True)
def import_policies(
    source: Path,
    output: Path,
    env: Env | None = None,
    episodes: int = 50,
    streams: int = 10,
    steps: int | None = None,
    greedy: bool = False,
    epsilon: float = 0.05,
    normalise: bool = False,
    seed: int = 42,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
) -> None:
    """Let policies of stable-baselines3 (`.zip`) or CleanRL (`.cleanrl_model`) play, and keep it as histories.

    The checkpoints of a task play one after the other, in the order of their training, for equal shares of a history.
    Their weights alone are read; nothing pickled is executed. The same call goes on after a kill, and under torchrun
    the processes share the work.

    Args:
        source: folder with a folder of checkpoints for each task, named by its number; the checkpoints themselves
            where the environment has one task.
        output: folder to write.
        env: that they were trained in, e.g. --env zoo.compressed_ad.GymnasiumEnv --env.id CartPole-v1
            --env.features '{"set.gravity": [9.8, 12.0]}' (two tasks); the original's dark room when not given.
        episodes: of each history; where their lengths differ, the steps are those of so many of the longest.
        streams: histories of each task.
        steps: of each history, in place of episodes.
        greedy: do the likeliest instead of drawing.
        epsilon: share of random actions of nets that tell values, where the file does not say.
        normalise: scale observations by what was seen so far: for policies that were trained behind VecNormalize or
            NormalizeObservation, whose statistics lie in pickles or nowhere.
        seed: of the histories.
        split_seed: of the split into training and test tasks.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks of a file.

    Raises:
        FileNotFoundError: when there are no policies.
        ValueError: when one cannot be read, does not fit the environment, or cannot be put into order.
    """
    env = env or Darkroom()
    files = find_policies(source, len(env.tasks()))
    rank, world_size = process_rank()
    counts = collect(
        env, output, Policies(files, greedy, epsilon, normalise), episodes, streams, list(files), seed, split_seed,
        train_share, shard_size, rank, world_size, steps=steps,
    )  # fmt: skip
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
