import errno
from pathlib import Path

import pytest
import torch

from zoo import atomic
from zoo.training import checkpoint_files as files
from zoo.training.run import find_checkpoint, find_config, new_run_folder, newest_run


def save(folder: Path, step: int, value: float = 0.0) -> Path:
    path = folder / f"step_{step:08d}.ckpt"
    files.save_checkpoint({"x": torch.tensor(value)}, path)
    return path


def test_round_trip_with_hash(tmp_path: Path) -> None:
    path = save(tmp_path, 7, 1.5)
    assert files.load_checkpoint(path)["x"] == 1.5
    assert files.is_sound(path)
    assert files.step_of(path) == 7
    assert path.with_name(path.name + ".sha256").read_text().endswith(f"  {path.name}\n")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_torn_file_is_named_and_the_previous_one_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, torn = save(tmp_path, 5), save(tmp_path, 10)
    data = bytearray(torn.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 255
    torn.write_bytes(bytes(data) if damage == "flip" else bytes(data[: len(data) // 2 if damage == "cut" else 0]))
    assert find_checkpoint(tmp_path) == good
    assert torn.name in caplog.text
    with pytest.raises(ValueError, match="torn"):
        find_checkpoint(torn)


def test_all_torn_or_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint \(\*\.ckpt\)"):
        find_checkpoint(tmp_path)
    (tmp_path / "step_00000001.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match="every checkpoint"):
        find_checkpoint(tmp_path)


def test_newest_is_by_step_not_by_time(tmp_path: Path) -> None:
    newest = save(tmp_path, 10)
    save(tmp_path, 5)
    assert find_checkpoint(tmp_path) == newest


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = save(tmp_path, 1, 1.0)

    def fail(file: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        atomic.write_atomic(path, fail)
    assert files.load_checkpoint(path)["x"] == 1.0
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + ".sha256"]


def test_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"x": Path("code")}, path)
    with pytest.raises(ValueError, match="zoo convert"):
        files.load_checkpoint(path)


def test_temporaries_are_swept(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    stale = [atomic.temporary_beside(tmp_path / "a.ckpt"), atomic.temporary_beside(tmp_path / "media" / "b.wav")]
    for path in stale:
        path.write_bytes(b"x")
    kept = save(tmp_path, 1)
    assert sorted(atomic.sweep_temporaries(tmp_path)) == sorted(stale)
    assert kept.is_file()


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with atomic.replacing(tmp_path / "out") as aside:
        aside.mkdir()
        (aside / "new").touch()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]
    with pytest.raises(RuntimeError), atomic.replacing(tmp_path / "out") as aside:
        aside.mkdir()
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_RUN_FOLDER", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    first = new_run_folder("hifigan/smoke", tmp_path)
    first.mkdir(parents=True)
    assert new_run_folder("hifigan/smoke", tmp_path) != first
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("ZOO_RUN_FOLDER", "chosen")
    assert new_run_folder("hifigan/smoke", tmp_path) == Path("chosen")
    assert newest_run(tmp_path) is None
    save(first, 1)
    assert newest_run(tmp_path) == first
    with pytest.raises(FileNotFoundError, match="--config"):
        find_config(first)
