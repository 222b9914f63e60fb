import os
from pathlib import Path

import pytest
import torch

from zoo.runs import checkpoints as files
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.run_folder import find_config, find_latest_run, new_run_folder


def save(folder: Path, step: int, value: float = 0.0) -> Path:
    path = folder / f"step_{step:08d}.ckpt"
    files.save_checkpoint({"x": torch.tensor(value)}, path)
    return path


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_corrupt_checkpoint_is_named_and_the_previous_one_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(FileNotFoundError, match=r"\*\.ckpt"):
        find_checkpoint(tmp_path)
    good, corrupt = save(tmp_path, 5), save(tmp_path, 10)
    assert find_checkpoint(tmp_path) == corrupt  # by step, not by time
    os.utime(good)
    assert find_checkpoint(tmp_path) == corrupt
    data = bytearray(corrupt.read_bytes())
    data[len(data) // 2] ^= 255
    corrupt.write_bytes({"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}[damage])
    assert find_checkpoint(tmp_path) == good
    assert corrupt.name in caplog.text
    good.unlink()
    for path in (corrupt, tmp_path):
        with pytest.raises(ValueError, match="corrupt"):
            find_checkpoint(path)


@pytest.mark.parametrize("hash_text", [None, b"", b"\xff\xfe", b"no hash  x.ckpt\n"])
def test_checksums_of_the_zip_decide_without_a_readable_hash(tmp_path: Path, hash_text: bytes | None) -> None:
    path = tmp_path / "step_00000007.ckpt"
    files.save_checkpoint({"x": torch.arange(1000.0)}, path)
    hash_file = path.with_name(path.name + ".sha256")
    hash_file.unlink()
    if hash_text is not None:
        hash_file.write_bytes(hash_text)
    assert files.is_valid_checkpoint(path)
    data = bytearray(path.read_bytes())
    start = data.index(torch.arange(1000.0).numpy().tobytes())
    for offset in range(5):
        data[start + 700 * offset] ^= 1
    path.write_bytes(data)
    assert not files.is_valid_checkpoint(path)


@pytest.mark.parametrize("overwrites", [False, True])
def test_kill_while_saving_leaves_a_valid_checkpoint(tmp_path: Path, overwrites: bool) -> None:
    def killed_at(rename: int) -> bool:
        """Save in a child that dies before one of its renames; return whether it died."""
        child = os.fork()
        if child == 0:
            count, replace = 0, os.replace

            def counted(*paths: object) -> None:
                nonlocal count
                count += 1
                if count == rename:
                    os._exit(9)
                replace(*paths)

            os.replace = counted
            try:
                save(tmp_path, 7, 2.0)
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1] != 0

    for rename in range(1, 9):
        for path in tmp_path.iterdir():
            path.unlink()
        if overwrites:
            save(tmp_path, 7, 1.0)
        killed = killed_at(rename)
        checkpoints = files.find_checkpoints(tmp_path)
        assert len(checkpoints) == 1 or (killed and not overwrites)
        assert all(files.is_valid_checkpoint(path) for path in checkpoints)
        if not killed:
            break
    assert not killed
    assert files.load_checkpoint(checkpoints[0])["x"] == 2.0


def test_hash_without_its_checkpoint_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step_00000007.ckpt"
    path.with_name(path.name + ".sha256").write_text(f"{'0' * 64}  {path.name}\n")
    older = save(tmp_path, 5)
    assert find_checkpoint(tmp_path) == older
    assert files.is_valid_checkpoint(save(tmp_path, 7))


def test_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ZOO_RUN_FOLDER", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    first = new_run_folder("hifigan/smoke")
    first.mkdir(parents=True)
    assert new_run_folder("hifigan/smoke") != first
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("ZOO_RUN_FOLDER", "chosen")
    assert new_run_folder("hifigan/smoke") == Path("chosen")
    assert find_latest_run(tmp_path) is None
    save(first, 1)
    save(tmp_path, 2)  # a converted file
    hidden = tmp_path / ".deleted" / "run"
    hidden.mkdir(parents=True)
    save(hidden, 3)
    assert find_latest_run(tmp_path) == tmp_path / first
    with pytest.raises(FileNotFoundError, match="--config"):
        find_config(first)
