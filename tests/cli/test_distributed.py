"""Two gloo processes by Lightning, torchrun and accelerate; equal to one process with the whole batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.harness import REPOSITORY, environment, forked, forked_ranks, good, newest
from zoo.flow.data.datamodule import ImageData
from zoo.flow.process.time_samplers import UniformTimes, sample_times
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.metrics_csv import read_metrics

CONFIGS = REPOSITORY / "configs"
TWO = ["--config", CONFIGS / "trainer" / "ddp.yaml", "--trainer.devices=2", "--trainer.accelerator=cpu"]
# in float64 the halves of a batch sum up to the batch on every processor; with SSE4 weights differ by 3e-15
EXACT = "--trainer.precision=64-true"
FEW = [EXACT, "--trainer.max_steps=3", "--trainer.val_check_interval=3", "--trainer.log_every_n_steps=1"]
SPEECH = ["--data.init_args.split.items=3", "--data.init_args.corpus.embedded_utterances=15"]


def sgd(**rates: float) -> list[str]:
    spec = "{{class_path: torch.optim.SGD, init_args: {{lr: {}}}}}"
    return [f"--model.init_args.{key}={spec.format(rate)}" for key, rate in rates.items()]


GAN = [*SPEECH, *sgd(optimizer_g=0.001, optimizer_d=0.001)]
# the log of near-silence that an untrained vocoder makes lets rounding grow from step to step: a small rate there
SMALL_GAN = [*SPEECH, *sgd(optimizer_g=1e-4, optimizer_d=1e-4)]
FLOW = [
    # pairs of a batch would be others in the halves of a batch
    "--model.init_args.coupling=null",
    "--model.init_args.net.init_args.dropout=0",
    "--data.init_args.max_per_class=10",
    *sgd(optimizer=0.1),
]
LATENT = [each.replace("data.init_args", "data.init_args.images.init_args") for each in FLOW]
# recipe -> options, and a metric of its validation
CASES: dict[str, tuple[list[str], str]] = {
    "hifigan/smoke": (GAN, "val/mel_l1"),
    "hifigan/smoke_magnitudes": (GAN, "val/mel_l1"),
    "hifigan/smoke_stochastic": (GAN, "val/mel_l1"),
    "miipher/smoke_adapter": ([*SPEECH, *sgd(optimizer=0.01)], "val/loss"),
    "miipher/smoke_finetune": (SMALL_GAN, "val/mel_l1"),
    "miipher/smoke_vocos": (SMALL_GAN, "val/mel_l1"),
    # the forward derivative is taken of the inner net, past DDP's wrapper: gradients must be reduced nevertheless
    "flow/smoke_meanflow": (FLOW, "val/loss"),
    "flow/smoke_dit": (FLOW, "val/loss"),
    # both processes encode the images and take the latents' scale from all of them
    "flow/smoke_latent": (LATENT, "val/loss"),
}
SLOW = ("hifigan/smoke_magnitudes", "hifigan/smoke_stochastic", "miipher/smoke_adapter", "miipher/smoke_vocos")
SLOW += ("flow/smoke_dit",)


def weights(run: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in load_checkpoint(newest(run))["state_dict"].values()])


def last_values(run: Path, metric: str) -> dict[str, float]:
    """The last logged training losses and the last validation's metric."""
    rows = read_metrics(run)
    trained = [row for row in rows if row.get("train/loss") or row.get("train/g/total")][-1]
    names = ("train/loss", "train/g/", "train/d/")
    values = {key: float(value) for key, value in trained.items() if value and key.startswith(names)}
    return values | {metric: [float(row[metric]) for row in rows if row.get(metric)][-1]}


def assert_equal(run: Path, reference: Path, metric: str) -> None:
    torch.testing.assert_close(weights(run), weights(reference), rtol=0, atol=1e-10)
    assert last_values(run, metric) == pytest.approx(last_values(reference, metric), rel=1e-4)
    # warm-ups and stages of schedules count updates, not processes
    ours, theirs = (load_checkpoint(newest(each))["lr_schedulers"] for each in (run, reference))
    assert [each["last_epoch"] for each in ours] == [each["last_epoch"] for each in theirs]


@pytest.mark.float64
@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_two_processes_equal_one_with_the_joined_batch(recipe: str, tmp_path: Path) -> None:
    options, metric = CASES[recipe]
    args = ["fit", recipe, *FEW, *options]
    good(forked(*args, "--data.init_args.batch_size=4", "--trainer.default_root_dir=one", cwd=tmp_path))
    two = [*TWO, "--data.init_args.batch_size=2", "--trainer.default_root_dir=two"]
    for result in forked_ranks(*args, *two, cwd=tmp_path):
        good(result)
    assert_equal(tmp_path / "two", tmp_path / "one", metric)


ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]  # 0: any free one


# tests/cluster/test_torchrun.py starts processes by torchrun
@pytest.mark.parametrize(
    "launcher", [[], pytest.param(ACCELERATE, marks=pytest.mark.slow)], ids=["lightning", "accelerate"]
)
def test_two_processes_of_a_launcher_equal_one(tmp_path: Path, launcher: list[str]) -> None:
    fit = ["fit", "flow/smoke", *FEW, *FLOW]
    good(forked(*fit, "--data.init_args.batch_size=8", "--trainer.default_root_dir=one", cwd=tmp_path))
    args = [sys.executable, *launcher, "-m", "zoo", *fit, *TWO]
    args += ["--data.init_args.batch_size=4", "--trainer.default_root_dir=run"]
    result = subprocess.run(args, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    good(result)
    assert_equal(tmp_path / "run", tmp_path / "one", "val/loss")
    assert "2 processes" in result.stderr + result.stdout


def test_noise_and_times_of_flow_differ_between_ranks() -> None:
    data = ImageData(image_resolution=8, channels=1, batch_size=8, max_per_class=10)
    data.setup("fit")

    def batch(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
        data.batch_size = 8 // world
        made = data.collate([data.train_set[key] for key in next(iter(data.train_batches(rank, world)))])
        return made["x0"], sample_times(UniformTimes(), 0.1, made["seeds"])[0]

    joined = batch(0, 1)
    for full, first, second in zip(joined, batch(0, 2), batch(1, 2), strict=True):
        assert torch.equal(torch.stack([first, second], dim=1).flatten(0, 1), full)
        assert len(full.flatten(1).unique(dim=0) if full.dim() > 1 else full.unique()) == 8


POLICY = "--model.init_args.policy.init_args"
COMPRESSED_AD = [
    *("--allow-import=witness", EXACT, "--trainer.max_steps=6", "--trainer.val_check_interval=6"),
    *("--trainer.log_every_n_steps=1", "--trainer.callbacks+=witness.Witness", *sgd(optimizer=0.1)),
    *(f"{POLICY}.{part}.init_args.dropout=0" for part in ("transformer", "compressor", "decoder")),
]
DISTILLATION = [
    "compressed_ad/smoke",
    # long enough items that no two are alike, with compressions
    "--data.init_args.curriculum.init_args.max_compressions=[9, 9]",
    "--data.init_args.curriculum.init_args.shares=[[0, 1], [0, 1]]",
]
ROOM = "{class_path: zoo.compressed_ad.Darkroom, init_args: {grid_size: 5, horizon: 6}}"
DEMONSTRATOR = "zoo.compressed_ad.EpsilonCurriculum"
PRETRAINING = [
    *("compressed_ad/pretrain_darkroom", "--trainer.accelerator=cpu"),
    *(f"{POLICY}.embedding.init_args.dim=16", f"{POLICY}.compressor.init_args.num_latents=3"),
    *("--model.init_args.scheduler.init_args.warmup_steps=1", f"--data.init_args.env={ROOM}"),
    *("--data.init_args.root=null", "--data.init_args.store.streams=0", "--data.init_args.store.steps=0"),
    f"--data.init_args.demonstrator={{class_path: {DEMONSTRATOR}, init_args: {{env: {ROOM}, episodes: 10}}}}",
    *("--data.init_args.epoch_items=64", "--data.init_args.num_workers=0"),
    "--data.init_args.evaluation.items=4",  # one batch, of which each of two processes needs a part
]
WITNESS = """
import hashlib
import lightning as L
import torch
import zoo

__getattr__, __dir__, __all__ = zoo.register(__name__, {"": "Witness"})

class Witness(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        steps = batch["steps"]
        rows = torch.cat([each.flatten(1) for each in (steps.states, steps.actions, steps.rewards)], 1)
        with open(f"seen_{trainer.world_size}_{trainer.global_rank}.txt", "a") as file:
            for row in rows:
                print(trainer.global_step, hashlib.sha256(row.numpy().tobytes()).hexdigest(), file=file)
"""


@pytest.mark.parametrize(
    ("stage", "metric"),
    [(DISTILLATION, "val/loss_action"), pytest.param(PRETRAINING, "val/loss", marks=pytest.mark.slow)],
    ids=["fit", "pretrain"],
)
def test_two_processes_equal_one_for_compressed_ad_and_share_no_history(
    stage: list[str], metric: str, tmp_path: Path
) -> None:
    (tmp_path / "witness").mkdir()
    (tmp_path / "witness" / "__init__.py").write_text(WITNESS)
    path = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{tmp_path}")["PYTHONPATH"]
    args, size = ["fit", *stage, *COMPRESSED_AD], "--data.init_args.batch_size="
    one = ["--trainer.devices=1", f"{size}8", "--trainer.default_root_dir=one"]
    good(forked(*args, *one, cwd=tmp_path, PYTHONPATH=path))
    two = [*TWO, f"{size}4", "--trainer.default_root_dir=two"]
    for result in forked_ranks(*args, *two, cwd=tmp_path, PYTHONPATH=path):
        good(result)
    assert_equal(tmp_path / "two", tmp_path / "one", metric)
    calls = [set((tmp_path / f"seen_{name}.txt").read_text().split("\n")[:-1]) for name in ("1_0", "2_0", "2_1")]
    assert [len(rows) for rows in calls] == [48, 24, 24]
    assert not calls[1] & calls[2] and calls[1] | calls[2] == calls[0]
