import errno
import os
from pathlib import Path

import pytest
import torch

from zoo.common import atomic_files
from zoo.runs import checkpoints as files
from zoo.runs.folder import find_checkpoint, find_config, new_run_folder, newest_run


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


@pytest.mark.parametrize("note", [None, b"", b"\xff\xfe", b"no hash  x.ckpt\n"])
def test_without_a_readable_hash_the_whole_file_is_checked(
    tmp_path: Path, note: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "step_00000007.ckpt"
    files.save_checkpoint({"x": torch.arange(1000.0)}, path)
    hash_file = path.with_name(path.name + ".sha256")
    hash_file.unlink()
    if note is not None:
        hash_file.write_bytes(note)
    assert files.is_sound(path)
    assert path.name in caplog.text
    assert "the whole file is read" in caplog.text
    assert note is None or f"{hash_file.name} cannot be read" in caplog.text
    data = bytearray(path.read_bytes())
    place = data.index(torch.arange(1000.0).numpy().tobytes())
    for offset in range(5):
        data[place + 700 * offset] ^= 1
    path.write_bytes(data)
    assert not files.is_sound(path, warn=True)
    assert "is damaged" in caplog.text
    with pytest.raises(ValueError, match="torn"):
        find_checkpoint(path)


@pytest.mark.parametrize("kills_before", [False, True])
@pytest.mark.parametrize("overwrites", [None, "with its hash", "without"])
def test_no_kill_leaves_a_checkpoint_without_its_hash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overwrites: str | None, kills_before: bool
) -> None:
    def killed_at(rename: int) -> bool:
        """Save in a child that dies at one of its renames, before or after it; whether it died."""
        child = os.fork()
        if child == 0:
            count, replace = 0, os.replace

            def counted(*paths: object) -> None:
                nonlocal count
                count += 1
                if count == rename and kills_before:
                    os._exit(9)
                replace(*paths)
                if count == rename:
                    os._exit(9)

            os.replace = counted
            try:
                save(tmp_path, 7, 2.0)
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1] != 0

    for rename in range(1, 9):
        for path in tmp_path.iterdir():
            path.unlink()
        if overwrites is not None:
            save(tmp_path, 7, 1.0)
        if overwrites == "without":
            (tmp_path / "step_00000007.ckpt.sha256").unlink()
        killed = killed_at(rename)
        caplog.clear()
        found = files.find_checkpoints(tmp_path)
        assert len(found) == 1 or (killed and overwrites is None)
        assert all(files.is_sound(path) for path in found)
        assert "sha256" not in caplog.text or overwrites == "without"
        assert "no hash file" not in caplog.text or (overwrites == "without" and rename == 1)
        if not killed:
            break
    assert not killed
    assert files.load_checkpoint(found[0])["x"] == 2.0
    assert len((tmp_path / "step_00000007.ckpt.sha256").read_text().splitlines()) == 1


def test_a_hash_without_its_checkpoint_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step_00000007.ckpt"
    path.with_name(path.name + ".sha256").write_text(f"{'0' * 64}  {path.name}\n")
    older = save(tmp_path, 5)
    assert find_checkpoint(tmp_path) == older
    assert files.is_sound(save(tmp_path, 7))


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
        atomic_files.write_atomic(path, fail)
    assert files.load_checkpoint(path)["x"] == 1.0
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + ".sha256"]


def test_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"x": Path("code")}, path)
    with pytest.raises(ValueError, match="zoo convert"):
        files.load_checkpoint(path)


def test_temporaries_are_swept(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    stale = [
        atomic_files.temporary_path(tmp_path / "a.ckpt"),
        atomic_files.temporary_path(tmp_path / "media" / "b.wav"),
    ]
    for path in stale:
        path.write_bytes(b"x")
    kept = save(tmp_path, 1)
    assert sorted(atomic_files.delete_temporary_files(tmp_path)) == sorted(stale)
    assert kept.is_file()


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with atomic_files.replace_atomically(tmp_path / "out") as aside:
        aside.mkdir()
        (aside / "new").touch()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]
    with pytest.raises(RuntimeError), atomic_files.replace_atomically(tmp_path / "out") as aside:
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
