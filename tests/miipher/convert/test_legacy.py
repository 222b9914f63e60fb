"""Old calls in our words: every key of the original is translated or named, and what comes out is a command of ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment, good
from zoo.cli.main import main
from zoo.common.systems import recipe_root
from zoo.miipher.convert import legacy
from zoo.miipher.convert.legacy import RENAMED, RENAMED_IN, WITHOUT_COUNTERPART

FRAGMENTS = recipe_root() / "trainer"


def flags(stage: str, *arguments: str, **variables: str) -> dict[str, str]:
    """The options of a translated call; configs are joined."""
    call = legacy.translate(stage, arguments, variables)
    assert call.command[0] == "fit"
    found: dict[str, str] = {}
    pairs = iter(call.command[1:])
    for part in pairs:
        key, _, value = part.removeprefix("--").partition("=")
        value = value if "=" in part else Path(next(pairs)).stem
        found[key] = f"{found[key]} {value}" if key in found else value
    return found


def notes(stage: str, *arguments: str) -> str:
    return "\n".join(legacy.translate(stage, arguments, {}).notes)


@pytest.mark.parametrize(
    ("stage", "name", "recipe"),
    [
        ("adapter", None, "adapter_layer_6"),
        ("adapter", "adapter_layer_6_mhubert_147", "adapter_layer_6"),
        ("adapter", "wavlm_base_l2", "adapter_l2_wavlm_base"),
        ("adapter", "smoke_adapter", "smoke_adapter"),
        ("pretrain", None, "hifigan_pretrain_layer_6"),
        ("finetune", "hifigan_finetune_layer_6.yaml", "hifigan_finetune_layer_6"),
    ],
)
def test_names_of_configurations(stage: str, name: str | None, recipe: str) -> None:
    given = [] if name is None else ["--config-name", name]
    assert flags(stage, *given) == {"config": recipe, "trainer.devices": "1", "trainer.num_nodes": "1"}
    assert flags(stage, *(f"-cn={each}" for each in given[1:]))["config"] == recipe


def test_the_example_of_the_manual() -> None:
    call = "batch_size=16 optim.lr=1e-4 training.mixed_precision=bf16 checkpoint.resume_from=latest wandb.enabled=false"
    assert flags("adapter", "--config-name", "adapter_layer_6", *call.split(), "accelerate.fsdp.enabled=true") == {
        "config": "adapter_layer_6 fsdp",
        "trainer.devices": "1",
        "trainer.num_nodes": "1",
        "trainer.precision": "bf16-mixed",
        "data.init_args.batch_size": "16",
        "ckpt_path": "auto",
        "model.init_args.optimizer.init_args.lr": "1e-4",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [("no", "32-true"), ("fp16", "16-mixed"), ("bf16", "bf16-mixed")],
)
def test_precision(given: str, expected: str) -> None:
    override = f"training.mixed_precision={given}"
    assert flags("adapter", override)["trainer.precision"] == expected
    on_cpu = flags("adapter", override, "training.force_cpu=true")
    assert on_cpu["trainer.precision"] == expected.replace("16-mixed", "32-true").replace("bf32-true", "bf16-mixed")
    assert on_cpu["trainer.accelerator"] == "cpu"
    assert flags("adapter", override, ACCELERATE_USE_CPU="true")["trainer.accelerator"] == "cpu"


def test_steps_of_the_original_are_batches() -> None:
    counts = ("steps=800", "validation_interval=500", "checkpoint.save_interval=400")
    found = flags("adapter", "training.gradient_accumulation_steps=4", "batch_size=3", *counts)
    assert found["trainer.accumulate_grad_batches"] == "4"
    assert found["trainer.max_steps"] == "200"
    assert found["trainer.val_check_interval"] == "500"  # Lightning counts batches here
    assert found["checkpoints.every_n_batches"] == "100"
    assert found["data.init_args.batch_size"] == "3"
    alone = flags("adapter", "training.gradient_accumulation_steps=1")
    assert alone["trainer.max_steps"] == "60000" and "trainer.val_check_interval" not in alone


def test_accumulation_of_the_gan_splits_a_batch_as_large_as_the_parts_together() -> None:
    assert flags("finetune", "batch_size=3")["data.init_args.batch_size"] == "6"  # the recipe accumulates twice
    found = flags("finetune", "gradient_accumulation_steps=4")
    assert (found["model.init_args.accumulate"], found["data.init_args.batch_size"]) == ("4", "32")
    assert found["trainer.max_steps"] == "12500"
    assert flags("pretrain", "validation_interval=500")["trainer.val_check_interval"] == "500"


def test_both_optimizers_of_the_gan_are_set() -> None:
    found = flags("pretrain", "lr=1e-5", "betas=[0.9, 0.95]", "optim.max_grad_norm=2", "optim.ema_decay=0.99")
    for side in "gd":
        assert found[f"model.init_args.optimizer_{side}.init_args.lr"] == "1e-5"
        assert found[f"model.init_args.optimizer_{side}.init_args.betas"] == "[0.9, 0.95]"
        assert found[f"model.init_args.clip_{side}"] == "2"
    assert found["trainer.callbacks+"] == "zoo.training.EMA"
    assert found["trainer.callbacks.decay"] == "0.99"


def test_weights_of_losses() -> None:
    found = flags("finetune", "lambda_mel=25.0", "lambda_adv=2.0", "lambda_fm=1.5")
    weights = {key.rpartition(".")[2]: value for key, value in found.items() if "loss_weights" in key}
    assert weights == {"g/mel": "25.0", "g/adv_mpd": "2.0", "g/adv_msd": "2.0", "g/fm_mpd": "3", "g/fm_msd": "3"}


def test_schedules() -> None:
    def schedule(*values: str) -> dict:
        given = flags("adapter", *(f"optim.scheduler.{value}" for value in values))
        return json.loads(given["model.init_args.scheduler"])

    assert schedule("name=constant") is None
    assert schedule("name=constant_with_warmup", "warmup_steps=7")["init_args"] == {"warmup_steps": 7}
    assert schedule("name=cosine", "min_lr_ratio=0.1")["init_args"]["min_factor"] == 0.1
    restarts = schedule("name=cosine_with_restarts", "first_cycle_steps=100", "cycle_mult=1.0", "min_lr=1.0e-6")
    assert restarts["init_args"] == {"T_0": 100, "T_mult": 1, "eta_min": 1e-6}
    assert flags("adapter", "optim.scheduler.warmup_steps=5")["model.init_args.scheduler.init_args.warmup_steps"] == "5"
    found = flags("finetune", "optim.scheduler.name=cosine", "optim.scheduler.warmup_steps=5")
    assert found["model.init_args.scheduler_interval"] == "step" and "model.init_args.scheduler_d" in found
    with pytest.raises(ValueError, match=r"give optim\.scheduler\.name"):
        schedule("min_lr=0")


def test_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(ValueError, match="zoo convert miipher"):
        flags("adapter", f"checkpoint.resume_from={run}")
    (run / "step_00000001.ckpt").touch()
    assert flags("adapter", f"checkpoint.resume_from={run}")["ckpt_path"] == str(run)
    assert "ckpt_path" not in flags("adapter", "checkpoint.resume_from=null")
    assert flags("finetune", "adapter_ckpt=a", "pretrained_gen=b")["init_from"] == "[a,b]"
    assert flags("pretrain", "adapter_ckpt=null", "pretrained_gen=b")["init_from"] == "[b]"


def test_corpus(tmp_path: Path) -> None:
    assert flags("adapter", f"dataset.path_pattern={tmp_path}")["data.init_args.root"] == str(tmp_path)
    assert "unpacked" in notes("adapter", "dataset.path_pattern=jvs-train-{000000..000020}.tar.gz")


def test_backbones_of_the_stages() -> None:
    for stage, place in (("adapter", "backbone.init_args."), ("pretrain", ""), ("finetune", "backbone.init_args.")):
        found = flags(stage, "model.hubert_layer=2", "model.hubert_model_name='a/b'")
        assert found[f"model.init_args.encoder.init_args.{place}layer"] == "2"
        assert found[f"model.init_args.encoder.init_args.{place}source"] == "a/b"


def test_launchers_say_how_many_devices() -> None:
    torchrun = {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    expected = {"config": "adapter_layer_6 ddp", "trainer.devices": "2", "trainer.num_nodes": "2"}
    assert flags("adapter", **torchrun) == expected
    assert flags("adapter", WORLD_SIZE="2", LOCAL_RANK="1") == flags("adapter")  # a process that Lightning started
    assert flags("adapter", "accelerate.deepspeed.enabled=true", **torchrun)["config"] == "adapter_layer_6 deepspeed"
    assert flags("adapter", "distributed.enabled=true")["config"] == "adapter_layer_6 ddp"


def test_what_has_no_counterpart_is_named() -> None:
    said = notes("adapter", "dataset.shuffle=1000", "accelerate.fsdp.use_orig_params=true", "wandb.enabled=true")
    assert "dataset.shuffle=1000" in said and "accelerate.fsdp.use_orig_params" in said and "offline" in said
    keys = [f"{key}x" if key.endswith(".") else key for key in WITHOUT_COUNTERPART]
    said = notes("pretrain", *(f"{key}=1" for key in keys))
    assert [key for key in keys if f"no counterpart: {key}=1: " not in said] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["batch_szie=3"], "batch_szie is no key"),
        (["lambda_mel=3"], "lambda_mel is no key of this stage"),
        (["batch_size=3.5"], "expected a whole number"),
        (["training.mixed_precision=fp8"], "expected no, fp16, bf16"),
        (["--config-name", "hifigan_pretrain_layer_6"], "another stage.*adapter_layer_6"),
        (["--config-name", "adapter_layer_99"], "no recipe here.*adapter_layer_6"),
        (["--config-path=conf"], "no counterpart"),
    ],
)
def test_a_faulty_call_ends_with_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        legacy.command("adapter", arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    with pytest.raises((ValueError, FileNotFoundError), match=told):
        legacy.translate("adapter", arguments, {})


VALUES = {
    "model.hubert_model_name": "a/b",
    "model.model_type": "hubert",
    "validation_batches": "null",
    "save_dir": "runs/old",
    "wandb.tags": "[a, b]",
    "optim.betas": "[0.8, 0.9]",
    "betas": "[0.8, 0.9]",
    "upsample_rates": "[7, 7, 3, 3]",
    "upsample_kernel_sizes": "[15, 15, 7, 7]",
    "resblock_kernel_sizes": "[3, 7, 11]",
    "resblock_dilations": "[[1, 3, 5], [1, 3, 5], [1, 3, 5]]",
}
MORE = (
    "batch_size=4",
    "gradient_accumulation_steps=2",
    "steps=60",
    "checkpoint.save_interval=4",
    "validation_interval=8",
    "wandb.enabled=true",
    "adapter_ckpt=a",
)
MORE += ("optim.scheduler.name=cosine", "optim.scheduler.warmup_steps=1", "training.mixed_precision=bf16")


@pytest.mark.parametrize("stage", ["adapter", "pretrain", "finetune"])
def test_all_keys_make_a_command_that_parses(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [*RENAMED, *RENAMED_IN[stage]]
    more = [*MORE, *(() if stage == "adapter" else ("lambda_fm=1", "optim.ema_decay=0.9"))]
    call = legacy.translate(stage, [*(f"{key}={VALUES.get(key, '3')}" for key in keys), *more], {})
    assert main([*call.command, "--print_config"]) == 0, capsys.readouterr().err
    assert "max_steps: 30" in capsys.readouterr().out


def test_a_script_trains(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "train_adapter.py"
    overrides = ["steps=2", "validation_interval=2", "save_dir=run", "--trainer.num_sanity_val_steps=0"]
    command = [sys.executable, str(script), "--config-name", "smoke_adapter", *overrides]
    result = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert "zoo fit --config" in good(result).stderr
    assert (tmp_path / "run" / "step_00000002.ckpt").is_file()
