"""Transitions of other projects: tiny files in their layouts, written here by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.compressed_ad.convert.transitions import import_minari, import_vintix, import_xland
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.schema import Discrete, box

h5py = pytest.importorskip("h5py")
STREAMS, STEPS = 3, 9


def write_xland(path: Path, groups: int = 11, seed: int = 0) -> dict[int, dict[str, np.ndarray]]:
    rng, made = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        for group in range(groups):
            made[group] = {
                "states": rng.integers(0, 13 * 12, (STREAMS, STEPS, 5, 5)).astype(np.uint8),
                "actions": rng.integers(0, 6, (STREAMS, STEPS)).astype(np.uint8),
                "rewards": rng.random((STREAMS, STEPS)).astype(np.float16),
                "dones": np.arange(STEPS)[None] % 4 == np.full((STREAMS, 1), 3),
                "expert_actions": rng.integers(0, 6, (STREAMS, STEPS)).astype(np.uint8),
            }
            for name, values in made[group].items():
                file.create_dataset(f"{group}/{name}", data=values, compression="gzip")
            file[str(group)].attrs["ruleset-id"] = 100 + group
    return made


def test_xland_becomes_histories(tmp_path: Path) -> None:
    made = write_xland(tmp_path / "trivial.hdf5")
    import_xland(tmp_path / "trivial.hdf5", tmp_path / "store", train_share=0.5)
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps) == (11, STREAMS, STEPS - 1)
    assert store.index["source"]["rulesets"][10] == "110"  # sorted as numbers, not as text
    assert store.env.schema.action == Discrete(6) and store.env.schema.limit == 4
    for task in (2, 10):
        rows, group = store.read(task, slice(None)), made[task]
        tile, colour = np.divmod(group["states"], 12)
        assert np.array_equal(rows["state"][..., 0], tile[:, :-1]) and np.array_equal(
            rows["state"][..., 1], colour[:, :-1]
        )
        assert np.array_equal(rows["next_state"][:, :-1], rows["state"][:, 1:])
        assert np.array_equal(rows["reward"], group["rewards"][:, :-1].astype(np.float32))
        assert np.array_equal(rows["truncated"], group["dones"][:, :-1]) and not rows["terminated"].any()
    data = HistoryData(store.env, str(tmp_path / "store"), length=6, batch_size=2, eval_seeds=0)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["steps"].states.shape == (2, 6, 5, 5, 2) and batch["steps"].actions.dtype == torch.int64
    with pytest.raises(ValueError, match="nothing can act in it"):
        store.env.start(store.tasks[:1])
    with pytest.raises(ValueError, match="holds something else"):
        import_xland(tmp_path / "trivial.hdf5", tmp_path / "store")
    (tmp_path / "cut.hdf5").write_bytes((tmp_path / "trivial.hdf5").read_bytes()[:500])
    with pytest.raises(ValueError, match="cut, damaged or no file of XLand"):
        import_xland(tmp_path / "cut.hdf5", tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        import_xland(tmp_path / "none.hdf5", tmp_path / "other")


BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -np.inf], "high": [1.0, np.inf]}
CLASSES = {"type": "Discrete", "dtype": "int64", "n": 3, "start": 1}


def write_minari(
    folder: Path, lengths: tuple[int, ...], observation: Any = BOX, action: Any = CLASSES, **facts: Any
) -> None:
    (folder / "data").mkdir(parents=True)
    described = {"data_format": "hdf5", "dataset_id": f"made/{folder.name}-v0", "total_steps": sum(lengths), **facts}
    spaces = {"observation_space": json.dumps(observation), "action_space": json.dumps(CLASSES)}
    (folder / "data" / "metadata.json").write_text(json.dumps({**described, **spaces}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, length in enumerate(lengths):
            group, count = file.create_group(f"episode_{number}"), np.arange(length + 1, dtype=np.float32)
            if observation["type"] == "Dict":
                group["observations/goal"] = np.full(length + 1, number % 2 + 1)
                group["observations/at"] = np.stack([count, -count], 1)
            else:
                group["observations"] = np.stack([count, count + 100 * number], 1)
            group["actions"] = np.arange(length) % 3 + 1
            group["rewards"] = np.arange(length) / 8
            group["terminations"] = np.arange(length) == length - 1 if number % 2 else np.zeros(length, dtype=bool)
            group["truncations"] = np.zeros(length, dtype=bool)


def test_minari_becomes_histories(tmp_path: Path) -> None:
    lengths = (2, 3, 1, 2, 1, 1, 1, 1, 1, 1, 4)  # eleven: ids sort as numbers
    write_minari(tmp_path / "one", lengths)
    write_minari(tmp_path / "two", (4, 5), env_spec="{}")
    import_minari([tmp_path / "one", tmp_path / "two" / "data"], tmp_path / "store", train_share=0.5)
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps) == (2, 1, 9)
    assert store.env.schema.observation == box((2,), "float32", [-1, -np.inf], [1, np.inf])
    assert store.env.schema.action == Discrete(3) and store.env.schema.limit == 5
    rows = store.read(0, 0)
    assert rows["state"][:6].tolist() == [[0, 0], [1, 1], [0, 100], [1, 101], [2, 102], [0, 200]]
    assert rows["next_state"][:3].tolist() == [[1, 1], [2, 2], [1, 101]]
    assert rows["action"][:5].tolist() == [0, 1, 0, 1, 2]
    assert rows["terminated"][:6].tolist() == [False, False, False, False, True, False]
    assert rows["truncated"][:6].tolist() == [False, True, False, False, False, True]  # recordings that stopped
    assert store.ends(1, 0).tolist() == [3, 8]


def test_dict_observations_are_flattened_and_others_refused(tmp_path: Path) -> None:
    parts = {"type": "Dict", "subspaces": {"goal": {**CLASSES, "n": 2}, "at": BOX}}
    write_minari(tmp_path / "dict", (2, 2), parts)
    import_minari([tmp_path / "dict"], tmp_path / "store", steps=3)
    store = HistoryStore(tmp_path / "store")
    assert store.env.schema.observation == box((3,), "float32", [-1, -np.inf, 0], [1, np.inf, 1])
    assert store.read(0, 0)["state"].tolist() == [[0, 0, 0], [1, -1, 0], [0, 0, 1]]
    picture = {"type": "Box", "dtype": "uint8", "shape": [8, 8, 3], "low": 0, "high": 255}
    for name, facts, message in (
        ("jpeg", {"observation": picture}, "JPEG"),
        ("arrow", {"data_format": "arrow"}, "its format is arrow"),
        ("text", {"observation": {"type": "Text"}}, "a space of type Text"),
    ):
        write_minari(tmp_path / name, (2,), **facts)
        with pytest.raises(ValueError, match=message):
            import_minari([tmp_path / name], tmp_path / "other")
    write_minari(tmp_path / "box", (2,))
    with pytest.raises(ValueError, match="different spaces"):
        import_minari([tmp_path / "dict", tmp_path / "box"], tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        import_minari([tmp_path / "nothing"], tmp_path / "other")


def write_vintix(folder: Path, histories: int, steps: int, second: bool = False, actions: int = 2) -> None:
    """Groups of 4 steps, episodes of 3; states count, and tell the history."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name}.json").write_text("{}")
    for number in range(histories):
        count = np.arange(steps, dtype=np.float32)
        values = {
            "proprio_observation": np.stack([count, np.full_like(count, number)], 1),
            "action": np.stack([np.sin(count)] * actions, 1).astype(np.float32),
            "reward": (count / 4)[:, None] if second else count / 4,
            "step_num": np.arange(steps, dtype=np.int32) % 3,
        }
        if second:
            values["demonstrator_action"] = values["action"]
        with h5py.File(folder / f"trajectories_{number}.h5", "w") as file:
            for start in range(0, steps, 4):
                group = file.create_group(f"{start}-{min(start + 4, steps)}")
                for key, value in values.items():
                    group[key] = value[start : start + 4]


@pytest.mark.parametrize("second", [False, True], ids=["Vintix", "Vintix II"])
def test_vintix_becomes_histories(tmp_path: Path, second: bool) -> None:
    folders = [tmp_path / name for name in ("ant", "hopper")]
    write_vintix(folders[0], 3, 14, second)
    write_vintix(folders[1], 2, 11, second)
    import_vintix(folders, tmp_path / "store", train_share=0.5)
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps, store.env.schema.limit) == (2, 2, 10, 3)
    assert store.index["source"]["tasks"] == ["ant", "hopper"]
    rows = store.read(1, 1)  # from group 8-11 after 4-8, by number and not by text
    assert rows["state"].tolist() == [[time, 1] for time in range(10)]
    assert rows["next_state"][:, 0].tolist() == list(range(1, 11))
    assert rows["reward"].tolist() == [time / 4 for time in range(10)]
    assert store.ends(1, 1).tolist() == [2, 5, 8] and not rows["terminated"].any()
    low, high = store.env.schema.action.limits()
    assert -1 <= low[0] < -0.99 and 0.98 < high[1] <= 1
    import_vintix(folders, tmp_path / "bounded", action_bounds=[-1, 1])
    assert HistoryStore(tmp_path / "bounded").env.schema.action == box((2,), "float32", -1, 1)
    with pytest.raises(ValueError, match="there are actions outside"):
        import_vintix(folders, tmp_path / "other", action_bounds=[-0.5, 0.5])
    write_vintix(tmp_path / "walker", 2, 5, actions=3)
    with pytest.raises(ValueError, match="different spaces"):
        import_vintix([*folders, tmp_path / "walker"], tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        import_vintix([tmp_path / "none"], tmp_path / "other")
    cut = folders[0] / "trajectories_0.h5"
    cut.write_bytes(cut.read_bytes()[:300])
    with pytest.raises(ValueError, match="cut, damaged or no file of Vintix"):
        import_vintix(folders, tmp_path / "other")
    assert not (tmp_path / "other").exists()
