"""Two gloo processes by Lightning, torchrun and accelerate; equal to one process with the whole batch."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.harness import REPOSITORY, SMOKE, environment, forked, forked_ranks, good, newest
from zoo.flow.data.datamodule import ImageData
from zoo.flow.process.time_samplers import UniformTimes, sample_times
from zoo.runs.checkpoints import load_checkpoint

DDP = REPOSITORY / "configs" / "trainer" / "ddp.yaml"
SGD = [f"--model.init_args.optimizer_{side}={{class_path: torch.optim.SGD, init_args: {{lr: 0.001}}}}" for side in "gd"]
# in float64 the halves of a batch sum up to the batch on every processor; with SSE4 weights differ by 3e-15
EXACT = "--trainer.precision=64-true"
ARGS = [
    EXACT,
    "--config",
    SMOKE,
    *SGD,
    "--trainer.max_steps=3",
    "--trainer.val_check_interval=3",
    "--data.init_args.split.items=3",
]
ARGS += ["--data.init_args.corpus.embedded_utterances=15", "--trainer.log_every_n_steps=1"]


def weights(run: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in load_checkpoint(newest(run))["state_dict"].values()])


def validation(run: Path, metric: str = "val/mel_l1") -> dict[str, float]:
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(metric)]
    return {key: float(value) for key, value in rows[-1].items() if key.startswith("val/") and value}


def losses(run: Path) -> dict[str, float]:
    """The last logged training losses."""
    with (run / "metrics.csv").open(newline="") as file:
        row = [row for row in csv.DictReader(file) if row.get("train/loss") or row.get("train/g/total")][-1]
    names = [key for key, value in row.items() if value and ("loss" in key or key.startswith(("train/g/", "train/d/")))]
    return {key: float(row[key]) for key in names if key.startswith("train/")}


def good_ranks(results: list[subprocess.CompletedProcess[str]]) -> None:
    for result in results:
        good(result)


@pytest.mark.float64
@pytest.mark.parametrize("recipe", ["smoke", "smoke_magnitudes", "smoke_stochastic"])
def test_two_processes_equal_one_with_the_joined_batch(recipe: str, tmp_path: Path) -> None:
    args = [SMOKE.with_stem(recipe) if each == SMOKE else each for each in ARGS]
    good(forked("fit", *args, "--data.init_args.batch_size=4", "--trainer.default_root_dir=one", cwd=tmp_path))
    both = ["--config", DDP, "--trainer.devices=2", "--trainer.accelerator=cpu", "--data.init_args.batch_size=2"]
    good_ranks(forked_ranks("fit", *args, *both, "--trainer.default_root_dir=two", cwd=tmp_path))
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-10)
    actual, expected = (validation(tmp_path / run) for run in ("two", "one"))
    assert actual.keys() == expected.keys()
    assert actual["val/mel_l1"] == pytest.approx(expected["val/mel_l1"], rel=1e-4)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.float64
@pytest.mark.parametrize(
    ("stage", "rates", "metric"),
    # the log of near-silence that an untrained vocoder makes lets rounding grow from step to step: a small rate there
    [
        ("adapter", {"optimizer": 0.01}, "val/loss"),
        ("finetune", {"optimizer_g": 1e-4, "optimizer_d": 1e-4}, "val/mel_l1"),
        pytest.param("vocos", {"optimizer_g": 1e-4, "optimizer_d": 1e-4}, "val/mel_l1", marks=pytest.mark.slow),
    ],
)
def test_two_processes_equal_one_for_miipher(stage: str, rates: dict[str, float], metric: str, tmp_path: Path) -> None:
    recipe = REPOSITORY / "configs" / "miipher" / f"smoke_{stage}.yaml"
    args = [
        EXACT,
        "--config",
        recipe,
        "--trainer.max_steps=3",
        "--trainer.val_check_interval=3",
        "--data.init_args.split.items=3",
    ]
    args += ["--data.init_args.corpus.embedded_utterances=15", "--trainer.log_every_n_steps=1"]
    args += [
        f"--model.init_args.{o}={{class_path: torch.optim.SGD, init_args: {{lr: {lr}}}}}" for o, lr in rates.items()
    ]
    good(forked("fit", *args, "--data.init_args.batch_size=4", "--trainer.default_root_dir=one", cwd=tmp_path))
    both = ["--config", DDP, "--trainer.devices=2", "--trainer.accelerator=cpu", "--data.init_args.batch_size=2"]
    good_ranks(forked_ranks("fit", *args, *both, "--trainer.default_root_dir=two", cwd=tmp_path))
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-10)
    actual, expected = (validation(tmp_path / run, metric) for run in ("two", "one"))
    assert actual == pytest.approx(expected, rel=1e-4)


FLOW = [
    EXACT,
    "--config",
    REPOSITORY / "configs" / "flow" / "smoke.yaml",
    "--trainer.max_steps=3",
    "--trainer.val_check_interval=3",
    "--trainer.log_every_n_steps=1",
    "--data.init_args.max_per_class=10",
    # pairs of a batch would be others in the halves of a batch
    "--model.init_args.coupling=null",
    "--model.init_args.net.init_args.dropout=0",
    "--model.init_args.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0.1}}",
]


LAUNCHERS = {
    "lightning": [],
    "torchrun": ["torch.distributed.run", "--nproc_per_node=2", "--master_port=29533"],
    "accelerate": [
        "accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
        "--dynamo_backend=no", "--main_process_port=29534"
    ]
}  # fmt: skip


@pytest.fixture(scope="module")
def run_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    good(forked("fit", *FLOW, "--data.init_args.batch_size=8", "--trainer.default_root_dir=run", cwd=folder))
    return folder / "run"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_of_a_launcher_equal_one(run_one: Path, tmp_path: Path, launcher: str) -> None:
    words = LAUNCHERS[launcher] and ["-m", *LAUNCHERS[launcher]]
    args = [sys.executable, *words, "-m", "zoo", "fit", *map(str, FLOW), "--config", str(DDP), "--trainer.devices=2"]
    args += ["--trainer.accelerator=cpu", "--data.init_args.batch_size=4", "--trainer.default_root_dir=run"]
    result = subprocess.run(args, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    good(result)
    run = tmp_path / "run"
    torch.testing.assert_close(weights(run), weights(run_one), rtol=0, atol=1e-10)
    assert validation(run, "val/loss") == pytest.approx(validation(run_one, "val/loss"), rel=1e-5)
    assert losses(run) == pytest.approx(losses(run_one), rel=1e-5)
    # the warm-up counts updates, not processes
    steps = [load_checkpoint(newest(each))["lr_schedulers"][0]["last_epoch"] for each in (run_one, run)]
    assert steps == [3, 3]
    assert "2 processes" in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("recipe", "images"),
    [
        # the forward derivative is taken of the inner net, past DDP's wrapper: gradients must be reduced nevertheless
        ("smoke_meanflow", "data.init_args"),
        pytest.param("smoke_dit", "data.init_args", marks=pytest.mark.slow),
        # both processes encode the images and take the latents' scale from all of them
        ("smoke_latent", "data.init_args.images.init_args"),
    ],
)
def test_two_processes_equal_one_for_the_transformer(recipe: str, images: str, tmp_path: Path) -> None:
    args = [each.with_stem(recipe) if isinstance(each, Path) else each for each in FLOW]
    args = [str(each).replace("data.init_args", images) for each in args]
    good(forked("fit", *args, "--data.init_args.batch_size=8", "--trainer.default_root_dir=one", cwd=tmp_path))
    both = ["--config", DDP, "--trainer.devices=2", "--trainer.accelerator=cpu", "--data.init_args.batch_size=4"]
    good_ranks(forked_ranks("fit", *args, *both, "--trainer.default_root_dir=two", cwd=tmp_path))
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-10)
    assert validation(tmp_path / "two", "val/loss") == pytest.approx(validation(tmp_path / "one", "val/loss"), rel=1e-5)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


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
    "--allow-import=witness",
    "--trainer.max_steps=6",
    "--trainer.val_check_interval=6",
    "--trainer.log_every_n_steps=1",
    "--trainer.callbacks+=witness.Witness",
    *(f"{POLICY}.{part}.init_args.dropout=0" for part in ("transformer", "compressor", "decoder")),
    "--model.init_args.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0.1}}",
]
DISTILLATION = [
    "--config",
    REPOSITORY / "configs" / "compressed_ad" / "smoke.yaml",
    # long enough items that no two are alike, with compressions
    "--data.init_args.curriculum.init_args.max_compressions=[9, 9]",
    "--data.init_args.curriculum.init_args.shares=[[0, 1], [0, 1]]",
]
SPACES = [DISTILLATION[0], DISTILLATION[1].with_stem("smoke_spaces"), *DISTILLATION[2:]]
ROOM = "{class_path: zoo.compressed_ad.Darkroom, init_args: {grid_size: 5, horizon: 6}}"
DEMONSTRATOR = "zoo.compressed_ad.EpsilonCurriculum"
PRETRAINING = [
    "--config",
    REPOSITORY / "configs" / "compressed_ad" / "pretrain_darkroom.yaml",
    "--trainer.accelerator=cpu",
    "--trainer.precision=32-true",
    f"{POLICY}.embedding.init_args.dim=16",
    f"{POLICY}.compressor.init_args.num_latents=3",
    "--model.init_args.scheduler.init_args.warmup_steps=1",
    f"--data.init_args.env={ROOM}",
    "--data.init_args.root=null",
    f"--data.init_args.demonstrator={{class_path: {DEMONSTRATOR}, init_args: {{env: {ROOM}, episodes: 10}}}}",
    "--data.init_args.store.streams=0",
    "--data.init_args.store.steps=0",
    "--data.init_args.epoch_items=64",
    "--data.init_args.evaluation.items=4",  # one batch, of which each of two processes needs a part
    "--data.init_args.num_workers=0",
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
    [(DISTILLATION, "val/loss_action"), (SPACES, "val/loss_action"), (PRETRAINING, "val/loss")],
    ids=["fit", "spaces", "pretrain"],
)
def test_two_processes_equal_one_for_compressed_ad_and_share_no_history(
    stage: list[object], metric: str, tmp_path: Path
) -> None:
    (tmp_path / "witness").mkdir()
    (tmp_path / "witness" / "__init__.py").write_text(WITNESS)
    path = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{tmp_path}")["PYTHONPATH"]
    run_one = ["--trainer.devices=1", "--data.init_args.batch_size=8", "--trainer.default_root_dir=one"]
    two = ["--config", DDP, "--trainer.devices=2", "--trainer.accelerator=cpu", "--data.init_args.batch_size=4"]
    args = [*stage, *COMPRESSED_AD, EXACT]
    good(forked("fit", *args, *run_one, cwd=tmp_path, PYTHONPATH=path))
    good_ranks(forked_ranks("fit", *args, *two, "--trainer.default_root_dir=two", cwd=tmp_path, PYTHONPATH=path))
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-10)
    actual, expected = (validation(tmp_path / run, metric) for run in ("two", "one"))
    assert actual == pytest.approx(expected, rel=1e-5)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    calls = [set((tmp_path / f"seen_{name}.txt").read_text().split("\n")[:-1]) for name in ("1_0", "2_0", "2_1")]
    assert [len(rows) for rows in calls] == [48, 24, 24]
    assert not calls[1] & calls[2] and calls[1] | calls[2] == calls[0]
    # stages of the schedule count updates, not processes
    steps = [load_checkpoint(newest(tmp_path / run))["lr_schedulers"][0]["last_epoch"] for run in ("one", "two")]
    assert steps == [6, 6]
