"""K3: one run killed again and again at random steps: it finishes with the same bits in a bounded folder;
and a kill in a validation costs neither its row nor the best checkpoint."""

import random
from pathlib import Path

import pytest

from tests.harness import TOY_FIT, bests, callback, fingerprint, forked, good, newest, record

FIT = [*TOY_FIT, *callback("zoo.training.ema.EMA", modules=["net"], decay=0.9)]
LARGEST_FOLDER = 4  # checkpoints: the last two, the best one, and the one being written


def many_kills(folder: Path, kills: int, steps: int) -> None:
    options = [*FIT, f"--trainer.max_steps={steps}"]
    whole, run = folder / "whole", folder / "run"
    good(forked(*options, f"--trainer.default_root_dir={whole}", cwd=folder))
    one = newest(whole).stat().st_size
    draw = random.Random(kills)
    saved = 0
    for number in range(kills):
        # each process trains a share of what is left
        step = saved + draw.randint(1, max(1, 2 * (steps - 10 - saved) // (kills - number)))
        workers = draw.choice([0, 2])
        again = ["--ckpt_path=auto", f"--data.init_args.num_workers={workers}", f"--trainer.default_root_dir={run}"]
        killed = forked(*options, *callback("KillAt", step=step), *again, cwd=folder)
        assert killed.returncode == -9, killed.stderr[-3000:]
        saved = (step - 1) // 5 * 5
        assert not saved or int(newest(run).stem.split("_")[1]) == saved
        files = [path for path in run.rglob("*") if path.is_file()]
        assert sum(path.suffix == ".ckpt" for path in files) <= LARGEST_FOLDER
        assert sum(path.stat().st_size for path in files) < LARGEST_FOLDER * one + 2**17
    good(forked(*options, "--ckpt_path=last", f"--trainer.default_root_dir={run}", cwd=folder))
    assert fingerprint(newest(run)) == fingerprint(newest(whole))
    assert record(run) == record(whole)
    assert bests(run) == bests(whole)
    assert sorted(path.name for path in run.glob("*.ckpt")) == sorted(path.name for path in whole.glob("*.ckpt"))


def test_two_kills_in_a_row(tmp_path: Path) -> None:
    many_kills(tmp_path, kills=2, steps=60)


@pytest.mark.slow
def test_twenty_kills_in_a_row(tmp_path: Path) -> None:
    many_kills(tmp_path, kills=20, steps=300)


def test_killed_in_a_validation(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    good(forked(*FIT, f"--trainer.default_root_dir={whole}", cwd=tmp_path))
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    for step in (10, 20, 40):  # saved just before; 20 and 40 end an epoch
        killed = forked(*options, *callback("KillAt", step=step, where="validation"), "--ckpt_path=auto", cwd=tmp_path)
        assert killed.returncode == -9, killed.stderr[-3000:]
        assert newest(run).name == f"step_{step:08d}.ckpt"
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert fingerprint(newest(run)) == fingerprint(newest(whole))
    assert record(run) == record(whole)
    assert bests(run) == bests(whole)
