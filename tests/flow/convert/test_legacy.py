"""Old calls in our words: every flag of the lineage is translated or named, and what comes out is a command of ours."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.harness import REPOSITORY, environment, good
from zoo.cli.main import main
from zoo.flow.convert import legacy
from zoo.flow.convert.recipe import FLAGS, options, recipe_path
from zoo.runs.checkpoints import load_checkpoint

SMOKE = REPOSITORY / "configs" / "flow" / "smoke.yaml"
ALONE = {"config": "base_parity", "trainer.devices": "1", "trainer.num_nodes": "1"}


def flags(*arguments: str, **variables: str) -> dict[str, str]:
    """The options of a translated call; configs are joined."""
    call = legacy.translate(arguments, variables)
    assert call.command[0] == "fit"
    found: dict[str, str] = {}
    pairs = iter(call.command[1:])
    for part in pairs:
        key, _, value = part.removeprefix("--").partition("=")
        value = value if "=" in part else Path(next(pairs)).stem
        found[key] = f"{found[key]} {value}" if key in found else value
    return found


def test_the_example_of_the_manual() -> None:
    call = "--batch_size 128 --train_num_steps 100000 --use_cfg --mixed_precision fp16 --gradient_accumulation_steps 1"
    assert flags(*call.split(), LOCAL_WORLD_SIZE="4", GROUP_WORLD_SIZE="1") == {
        "config": "base_parity ddp",
        "trainer.devices": "4",
        "trainer.num_nodes": "1",
        "trainer.precision": "16-mixed",
        "trainer.max_steps": "100000",
        "trainer.accumulate_grad_batches": "1",
        "trainer.log_every_n_steps": "200",
        "checkpoints.every_n_batches": "2000",
        "data.init_args.batch_size": "128",
    }


def test_the_recipe_has_the_defaults_of_the_flags() -> None:
    recipe = yaml.safe_load(recipe_path().read_text())
    for option, value in options({flag: setting.default for flag, setting in FLAGS.items()}, "defaults").items():
        section = recipe
        for key in option.split("."):
            section = section[key]
        assert section == value, option
    assert flags("--use_cfg") == ALONE


def test_micro_batches_become_updates() -> None:
    counts = ("--train_num_steps=1001", "--log_interval", "100", "--sample_log_interval", "500", "--warmup_steps", "8")
    found = flags("--use_cfg", "--gradient_accumulation_steps=4", *counts)
    assert found["trainer.accumulate_grad_batches"] == "4"
    assert found["trainer.max_steps"] == "251"
    assert found["trainer.log_every_n_steps"] == "25"
    assert found["trainer.val_check_interval"] == "500"  # Lightning counts batches here
    assert found["checkpoints.every_n_batches"] == "125"
    assert found["model.init_args.scheduler.init_args.warmup_steps"] == "7"
    assert flags("--use_cfg", "--gradient_accumulation_steps=2")["trainer.max_steps"] == "50000"
    assert flags("--warmup_steps=0")["model.init_args.scheduler.init_args.warmup_steps"] == "0"


def test_other_flags() -> None:
    given = "--max_num_images_per_cat -1 --sigma_min 0.01 --seed 5 --cfg_dropout 0.2 --image_resolution 32"
    found = flags("--use_cfg", *given.split(), "--num_workers", "2", "--mixed_precision", "bf16")
    assert {key: value for key, value in found.items() if key not in ALONE} == {
        "data.init_args.max_per_class": "-1",
        "model.init_args.path.init_args.sigma_min": "0.01",
        "seed_everything": "5",
        "data.init_args.seed": "5",
        "model.init_args.label_drop": "0.2",
        "data.init_args.image_resolution": "32",
        "data.init_args.num_workers": "2",
        "trainer.precision": "bf16-mixed",
    }


def test_without_classes() -> None:
    call = legacy.translate(["--cfg_dropout=0.2", "--gpu", "3"], {})
    assert "--model.init_args.net.init_args.num_classes=0" in call.command
    assert "--model.init_args.label_drop=0.0" in call.command
    assert "--model.init_args.guidance=null" in call.command
    assert call.notes[0].startswith("no counterpart: --gpu 3: ") and "without --use_cfg" in call.notes[1]


def test_launchers_say_how_many_devices() -> None:
    torchrun = {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3", "WORLD_SIZE": "6"}
    expected = {"config": "base_parity ddp", "trainer.devices": "2", "trainer.num_nodes": "3"}
    assert flags("--use_cfg", **torchrun) == expected
    assert flags("--use_cfg", WORLD_SIZE="2", LOCAL_RANK="1") == ALONE  # a process that Lightning started
    on_cpu = flags("--use_cfg", "--mixed_precision=fp16", ACCELERATE_USE_CPU="true")
    assert (on_cpu["trainer.accelerator"], on_cpu["trainer.precision"]) == ("cpu", "32-true")


def test_options_of_fit_are_passed_on() -> None:
    found = flags("--use_cfg", "--trainer.devices=2", "--config", str(SMOKE), "--loggers=[wandb]")
    assert found["config"] == "smoke" and found["trainer.devices"] == "1 2" and found["loggers"] == "[wandb]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batch_size", "3.5"], "batch_size is a whole number, not '3.5'"),
        (["--batch_size", "0"], "batch_size is at least 1"),
        (["--sigma_min", "small"], "sigma_min is a number"),
        (["--seed", "-1"], "seed is at least 0"),
        (["--mixed_precision", "fp8"], "one of no, fp16, bf16, not 'fp8'"),
        (["--batch_size"], "expected one argument"),
        (["--use_cfg=3"], "ignored explicit argument"),
    ],
)
def test_a_faulty_call_ends_with_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        legacy.command(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and told in error


@pytest.mark.parametrize("on", [True, False])
def test_all_flags_make_a_command_that_parses(on: bool, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--{flag}={setting.default}" for flag, setting in FLAGS.items() if flag != "use_cfg"]
    given = [*given, "--gpu=0", *(["--use_cfg"] if on else [])]
    assert main([*legacy.translate(given, {}).command, "--print_config"]) == 0, capsys.readouterr().err
    printed = yaml.safe_load(capsys.readouterr().out)
    model = printed["model"]["init_args"]
    assert (model["net"]["init_args"]["num_classes"], model["label_drop"]) == ((3, 0.1) if on else (0, 0.0))
    assert (model["guidance"] is not None) is on
    assert main([*legacy.translate(["--batch_szie=3"], {}).command, "--print_config"]) == 2
    assert "batch_szie" in capsys.readouterr().err


def test_the_script_trains_under_torchrun(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "train_flow.py"
    run = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29537", str(script)]
    old = "--use_cfg --batch_size 4 --train_num_steps 4 --gradient_accumulation_steps 2 --warmup_steps 3 --gpu 0"
    ours = [f"--config={SMOKE}", "--trainer.default_root_dir=run", "--trainer.limit_val_batches=1"]
    result = subprocess.run(
        [sys.executable, *run, *old.split(), *ours],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = good(result).stderr
    assert said.count("the same here: python -m zoo fit") == 1 and said.count("note: ") == 1
    checkpoint = load_checkpoint(tmp_path / "run" / "step_00000002.ckpt")
    assert checkpoint["lr_schedulers"][0]["last_epoch"] == 2
