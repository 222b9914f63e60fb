"""Two hosts under torchrun: lost, hung and failing ranks; each training ends everywhere, or as if nothing had been."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.cluster.hosts import INTERFACE, Host, available, hosts
from tests.harness import REPOSITORY, TOY, TOY_ARGS, TOY_RECIPE, callback, environment, fingerprint, newest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not available(), reason="needs root and network namespaces"),
]
TOY_FLAGS = ("--trainer.max_steps=60", "--trainer.val_check_interval=10", "--checkpoints.every_n_batches=5")
FLOW_FLAGS = ("--trainer.accelerator=cpu", "--trainer.max_steps=120", "--checkpoints.every_n_batches=10")
SECONDS = 1500  # for a drill on a busy machine


@pytest.fixture(scope="module")
def pair() -> Iterator[Sequence[Host]]:
    with hosts(2) as made:
        yield made


class Training:
    """`scripts/launch.sh` on every host, with one process each.

    Args:
        work: the working directory, the same on all hosts.
        flags: of `zoo fit`; `{host}` in them is the host's name.
        variables: of the environment.
    """

    def __init__(self, pair: Sequence[Host], work: Path, recipe: object, *flags: object, **variables: str) -> None:
        self.pair, self.work, self.recipe, self.flags, self.variables = pair, work, recipe, flags, variables
        work.mkdir(exist_ok=True)
        self.launchers: dict[Host, subprocess.Popen[bytes]] = {}
        for host in pair:
            self.launch(host)

    def launch(self, host: Host) -> None:
        rank = self.pair.index(host)
        several = ("--nodes", 2, "--node-rank", rank, "--master", f"{self.pair[0].address}:29411")
        flags = [str(flag).replace("{host}", host.name) for flag in self.flags]
        script = REPOSITORY / "scripts" / "launch.sh"
        command = host.command("bash", script, self.recipe, 1, *several, "--address", host.address, *flags)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "GLOO_SOCKET_IFNAME": INTERFACE, "ZOO_WAIT": "5", "CUDA_VISIBLE_DEVICES": ""}
        found = {**environment(), **variables, **{k: v.replace("{host}", host.name) for k, v in self.variables.items()}}
        with (self.work / f"{rank}.log").open("ab") as log:
            self.launchers[host] = subprocess.Popen(command, cwd=self.work, env=found, stdout=log, stderr=log)

    def rank(self, host: Host) -> psutil.Process | None:
        """The training process of a host, not its data workers."""
        for number in host.processes():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(number)
                above = process.parent()
                if _is_fit(process) and not (above and _is_fit(above)):
                    return process
        return None

    def step(self) -> int:
        """Of the newest checkpoint."""
        return max((int(path.stem.rpartition("_")[2]) for path in self.work.rglob("step_*.ckpt")), default=-1)

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end and self.running(), self.said()
            time.sleep(0.1)

    def running(self) -> bool:
        return any(launcher.poll() is None for launcher in self.launchers.values())

    def end(self) -> list[int]:
        """Wait for the launchers; their exit codes."""
        return [launcher.wait(SECONDS) for launcher in self.launchers.values()]

    def said(self) -> str:
        return "".join((self.work / f"{rank}.log").read_text(errors="replace") for rank in range(len(self.pair)))

    def run(self) -> Path:
        return max(self.work.rglob("step_*.ckpt"), key=lambda path: path.stat().st_mtime).parent


def _is_fit(process: psutil.Process) -> bool:
    return " -u -m zoo fit " in " ".join(process.cmdline())


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if "zoo: error" in line or line.startswith("Traceback")]


def test_a_killed_rank_comes_back(pair: Sequence[Host], tmp_path: Path) -> None:
    fault = callback("Misfortune", rank=random.randrange(2), step=12, kind="kill")
    training = Training(pair, tmp_path / "run", TOY_RECIPE, *TOY_ARGS, *TOY_FLAGS, *fault)
    assert training.end() == [0, 0], training.said()
    assert training.step() == 60
    assert training.said().count("launch: a process was lost") == 2, training.said()


@pytest.mark.slow
def test_three_killed_ranks_and_a_killed_host_cost_nothing(pair: Sequence[Host], tmp_path: Path) -> None:
    calm = Training(pair, tmp_path / "calm", "flow/smoke", *FLOW_FLAGS)
    assert calm.end() == [0, 0], calm.said()
    seed = time.time_ns() % 2**32
    print("seed", seed)
    chance = random.Random(seed)
    stormy = Training(pair, tmp_path / "stormy", "flow/smoke", *FLOW_FLAGS)
    known, began = -1, time.monotonic()
    for blow in ("rank", "rank", "host", "rank"):
        stormy.until(lambda known=known: stormy.step() > known and all(map(stormy.rank, pair)))
        time.sleep(chance.uniform(0, 2))
        known, host = stormy.step(), chance.choice(pair)
        print(f"{time.monotonic() - began:.0f} s, step {known}: {blow} {host.name}")
        if blow == "host":
            host.kill()
            stormy.launchers[host].wait()
            time.sleep(chance.uniform(0, 5))
            stormy.launch(host)
        else:
            victim = stormy.rank(host)
            if victim is not None:
                victim.kill()
    assert stormy.end() == [0, 0], stormy.said()
    print(f"{time.monotonic() - began:.0f} s")
    assert stormy.step() == 120
    assert stormy.said().count("launch: a process was lost") >= 4
    assert fingerprint(newest(stormy.run())) == fingerprint(newest(calm.run()))


@pytest.mark.slow
def test_a_stopped_rank_is_found_by_the_timeout(pair: Sequence[Host], tmp_path: Path) -> None:
    fault = callback("Misfortune", rank=1, step=12, kind="stop")
    training = Training(pair, tmp_path / "run", TOY_RECIPE, *TOY_ARGS, *TOY_FLAGS, *fault, ZOO_TIMEOUT="15")
    assert training.end() == [0, 0], training.said()
    assert training.step() == 60
    said = training.said()
    assert re.search(rf"rank 0 on {pair[0].name}, step \d+: lost contact with rank 1 \({pair[1].name}\)", said), said
    assert "training_step" in next(training.run().glob("stacks-rank0.txt")).read_text()


@pytest.mark.slow
def test_sigterm_to_one_launcher_saves_once_and_ends_all(pair: Sequence[Host], tmp_path: Path) -> None:
    training = Training(pair, tmp_path / "run", "flow/smoke", *FLOW_FLAGS, "--checkpoints.every_n_batches=1000")
    training.until(lambda: "step 10/" in training.said())
    training.launchers[pair[1]].send_signal(signal.SIGTERM)
    assert training.end() == [143, 143], training.said()
    assert training.step() > 0 and "launch:" not in training.said() and not errors(training.said())
    assert len(list(training.work.rglob("step_*.ckpt"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["error", "disk", "bug"])
def test_an_error_of_one_rank_ends_all_with_one_line(kind: str, pair: Sequence[Host], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        fault = callback("Misfortune", rank=1, step=12, kind=kind, folder=str(small))
        training = Training(pair, tmp_path / "run", TOY_RECIPE, *TOY_ARGS, *TOY_FLAGS, *fault)
        assert training.end() == [1, 1], training.said()
    finally:
        subprocess.run(["umount", str(small)], check=True)
    said = training.said()
    what = {"error": "broken.wav is no audio file", "disk": "disk full", "bug": "KeyError: 'lost key'"}[kind]
    lines = [line for line in errors(said) if line.startswith("zoo: error")]
    assert len(lines) == 1 and re.match(rf"zoo: error: rank 1 on {pair[1].name}, step 12: {what}", lines[0]), said
    assert "launch:" not in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["settings", "code", "data"])
def test_unequal_hosts_are_refused_with_one_line(kind: str, pair: Sequence[Host], tmp_path: Path) -> None:
    a, b = pair
    flags: list[object] = [*TOY_ARGS, *TOY_FLAGS]
    recipe, variables, expected = TOY_RECIPE, {}, ""
    if kind == "settings":
        for host, rate in ((a, "0.1"), (b, "0.2")):
            (tmp_path / f"{host.name}.yaml").write_text(
                f"model:\n  init_args: {{optimizer: {{init_args: {{lr: {rate}}}}}}}\n"
            )
        flags += ["--config", tmp_path / "{host}.yaml"]
        expected = f"model.init_args.optimizer.init_args.lr is 0.1 on rank 0 ({a.name}), 0.2 on rank 1 ({b.name})"
    elif kind == "code":
        for host in pair:
            shutil.copytree(
                REPOSITORY / "zoo", tmp_path / host.name / "zoo", ignore=shutil.ignore_patterns("__pycache__")
            )
            (tmp_path / host.name / "configs").symlink_to(REPOSITORY / "configs")
        with (tmp_path / b.name / "zoo" / "__init__.py").open("a") as file:
            file.write("# changed on one host\n")
        variables["PYTHONPATH"] = f"{tmp_path}/{{host}}{os.pathsep}{TOY}"
        expected = "zoo's code is "
    else:
        for host, count in ((a, 20), (b, 21)):
            for name in range(count):
                path = tmp_path / host.name / str(name % 2) / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8), 10 * name, np.uint8)).save(path)
        recipe = REPOSITORY / "configs" / "flow" / "smoke.yaml"
        flags = ["--trainer.accelerator=cpu", f"--data.init_args.root={tmp_path}/{{host}}"]
        flags += ["--data.init_args.batch_size=4", "--model.init_args.net.init_args.num_classes=2"]
        expected = "number of training items is "
    training = Training(pair, tmp_path / "run", recipe, *flags, **variables)
    assert training.end() == [2, 2], training.said()
    said = training.said()
    assert len(errors(said)) == 1 and expected in errors(said)[0] and b.name in errors(said)[0], said


@pytest.mark.slow
def test_torchrun_by_hand(pair: Sequence[Host], tmp_path: Path) -> None:
    processes = []
    for host in pair:
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={pair[0].address}:29412", f"--local-addr={host.address}"]
        meeting += [f"--rdzv-conf=is_host={str(host is pair[0]).lower()}"]
        fit = ["-m", "zoo", "fit", "flow/smoke", "trainer/ddp", "--trainer.accelerator=cpu", "--trainer.devices=1"]
        fit += ["--trainer.default_root_dir=run"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        command = host.command(*torchrun, *meeting, *fit)
        with (tmp_path / f"{host.name}.log").open("wb") as log:
            variables = environment(GLOO_SOCKET_IFNAME=INTERFACE)
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=log, stderr=log))
    assert [process.wait(SECONDS) for process in processes] == [0, 0]
    assert newest(tmp_path / "run").name == "step_00000020.ckpt"
