import logging
import multiprocessing
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from tests.harness import TOY_FIT, callback, forked, forked_ranks, good, newest
from zoo.common import environment
from zoo.training.callbacks.report import Banner, facts
from zoo.training.callbacks.train_log import LOG_NAME


class Task(L.LightningModule):
    def __init__(self, accumulate=1):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.step = SimpleNamespace(accumulate=accumulate)

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    batch_size = 4

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 3), batch_size=4)


def make_trainer(tmp_path, **settings):
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        max_epochs=1,
        callbacks=[Banner("toy/recipe")],
        **settings,
    )


def test_one_process(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    make_trainer(tmp_path, devices=1, accumulate_grad_batches=3).fit(Task(accumulate=2), Data())
    text = caplog.text
    assert "12 = 4 per process x 1 process x 3 accumulated batches" in text
    assert "2 of each batch" in text
    assert "8 trained (net), 6 frozen (frozen)" in text
    assert f"cpu ({environment.cpu_name()})" in text
    assert "32-true" in text
    assert str(tmp_path) in text
    assert "toy/recipe" in text


def test_without_a_batch_size_the_line_is_left_out(tmp_path):
    trainer = make_trainer(tmp_path, devices=1)
    assert "effective batch" not in facts(trainer, Task(), ["cpu"])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="forks its second process")
def test_two_processes_log_once_and_name_both_devices(tmp_path):
    log = tmp_path / "log.txt"
    handler = logging.FileHandler(log)
    logger = logging.getLogger("zoo.training.callbacks.report")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        make_trainer(tmp_path, devices=2, strategy="ddp_fork").fit(Task(), Data())
    finally:
        logger.removeHandler(handler)
    lines = log.read_text().splitlines()
    assert sum("rank 0" in line for line in lines) == 1
    assert sum("rank 1" in line for line in lines) == 1
    assert any("8 = 4 per process x 2 processes" in line for line in lines)
    assert any("2 on 1 node, DDPStrategy" in line for line in lines)


def test_hardware():
    cpu = environment.list_devices()[0]
    assert (cpu.name, cpu.backend) == ("cpu", "CPU")
    assert cpu.memory_bytes > 0
    assert environment.available_cores() >= 1


@pytest.mark.gpu
def test_gpu():
    device = torch.device("cuda:0")
    torch.ones(1_000_000, device=device)
    assert environment.peak_memory_bytes(device) >= 4_000_000
    assert environment.list_devices()[1].name == "cuda:0"
    assert "cuda:0 (" in environment.describe_device(device)


def told(text):
    """The table at a run's end by its first column, and the line after it."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("trained", "stopped", "failed")))
    table, key = {}, ""
    for number, line in enumerate(lines[start:], start):
        if line.startswith("zoo: error"):
            assert number == len(lines) - 1
            return table, line
        key = line[:15].strip() or key
        table.setdefault(key, []).append(line[16:])
    return table, None


def fit(folder, *options, **extra):
    return forked(*TOY_FIT, f"--trainer.default_root_dir={folder / 'run'}", *options, cwd=folder, **extra)


def test_the_beginning_and_the_end_of_a_run(tmp_path):
    result = good(fit(tmp_path))
    assert result.stderr.startswith("recipe          toy_wing/smoke\nsystem          toy_wing.GainTask\n")
    assert "data            40 items to train on, 20 batches an epoch, 4 to validate\n" in result.stderr
    table, error = told(result.stderr)
    run = tmp_path / "run"
    (best,) = run.glob("best-*.ckpt")
    assert error is None
    assert table["trained"][0].startswith("60 steps in ")
    assert table["run folder"] == [f"{run} (step_00000060.ckpt)"]
    assert best.name in table["best"][0]
    assert table["loss"][0].startswith("first ") and ", last " in table["loss"][0]
    assert [line.split()[:2] for line in table["next"]] == [["zoo", "predict"], ["zoo", "export"]]
    assert all(str(run) in line and line.endswith("--allow-import toy_wing") for line in table["next"])
    log = (run / LOG_NAME).read_text()
    assert "toy_wing.GainTask" in log and "60 steps in" in log and "max_steps=60" in log
    assert "max_steps" not in result.stderr


def test_a_loss_that_is_no_number_any_more_is_told_at_the_end(tmp_path):
    table, _ = told(good(fit(tmp_path, "--model.init_args.optimizer.init_args.lr=1e30")).stderr)
    (said,) = table["not finite"]
    assert said.startswith("loss from step 1 on: ") and "zoo.training.LossGuard" in said


def test_ctrl_c_tells_how_to_go_on_and_the_resumed_run_tells_from_where(tmp_path):
    stopped = fit(tmp_path, *callback("KillAt", step=13, signum=2, where="train", times=1, group=False))
    assert stopped.returncode == 130
    table, _ = told(stopped.stderr)
    run = tmp_path / "run"
    assert table["stopped"][0].startswith("13 steps of 60 in ")
    command = table["next"][0]
    assert command == f"zoo fit --ckpt_path {run} --allow-import toy_wing"
    resumed = good(forked(*command.split()[1:], cwd=tmp_path))
    assert f"goes on from    {run}/step_00000013.ckpt" in resumed.stderr
    assert "step 20/60 " in resumed.stderr and "step 10/60 " not in resumed.stderr
    assert told(resumed.stderr)[0]["trained"][0].startswith("steps 14 to 60 in ")
    again = good(forked("fit", "--ckpt_path", str(run), *command.split()[-2:], cwd=tmp_path))
    assert told(again.stderr)[0]["trained"] == ["no step; the checkpoint has 60, training ends at 60"]


def test_after_an_error_its_cause_is_the_last_line(tmp_path):
    failed = fit(tmp_path, "--checkpoints.monitor=val/nothing")
    assert failed.returncode == 1
    table, error = told(failed.stderr)
    assert table["failed"][0].startswith("10 steps of 60 in ")
    assert table["run folder"] == [f"{tmp_path / 'run'} ({newest(tmp_path / 'run').name})"]
    assert "val/nothing" in error


def test_an_error_before_the_first_step_tells_only_itself(tmp_path):
    failed = fit(tmp_path, "--data.init_args.batch_size=1000")
    assert failed.returncode != 0 and "failed " not in failed.stderr and "run folder" not in failed.stderr


def test_the_next_commands_compare_with_the_run_before(tmp_path):
    for name in ("a", "b"):
        last = good(forked(*TOY_FIT, f"--trainer.default_root_dir={name}", "--trainer.max_steps=1", cwd=tmp_path))
    assert told(last.stderr)[0]["next"][-1] == "zoo compare a b --allow-import toy_wing"


def test_quiet_and_verbose(tmp_path):
    options = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0"]
    assert good(fit(tmp_path, *options, ZOO_VERBOSITY="quiet")).stderr == ""
    assert "1 steps in" in (tmp_path / "run" / LOG_NAME).read_text()
    other = f"--trainer.default_root_dir={tmp_path / 'other'}"
    verbose = good(forked(*TOY_FIT, other, *options, cwd=tmp_path, ZOO_VERBOSITY="verbose")).stderr
    assert "GPU available" in verbose and "max_steps=1" in verbose
    refused = fit(tmp_path, ZOO_VERBOSITY="loud")
    assert refused.returncode == 1 and "ZOO_VERBOSITY" in refused.stderr


def test_two_processes_tell_once(tmp_path):
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10"]
    first, second = forked_ranks(*TOY_FIT, f"--trainer.default_root_dir={tmp_path / 'run'}", *options, cwd=tmp_path)
    assert good(first).stderr.count("trained ") == 2  # parameters and end
    assert first.stderr.count("step 10/10 ") == 1
    assert good(second).stderr == ""


def test_other_commands_tell_nothing_of_training(tmp_path):
    good(fit(tmp_path, "--trainer.max_steps=1"))
    validated = good(forked("validate", "--ckpt_path=run", *TOY_FIT[-2:], cwd=tmp_path))
    assert "run folder" not in validated.stderr and "step " not in validated.stderr
