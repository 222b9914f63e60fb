"""Folders that a training writes with its checkpoints: content, which are deleted, who writes."""

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from safetensors.torch import save_file

from tests.ci_llm.task_parts import byte_task, loader, pretrain_task, texts, trainer
from zoo.ci_llm import AdapterFolders, PretrainedTokenizer
from zoo.ci_llm.convert import convert
from zoo.ci_llm.convert.read import read_original, read_peft
from zoo.runs.checkpoints import load_checkpoint
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.rng import RNGState


def run(folder: Path, task, steps: int = 6, others=()):
    checkpoints = Checkpoints(every_n_steps=2, every_minutes=None, keep_last=1)
    callbacks = [AdapterFolders(), *others, RNGState(), checkpoints]
    saves = {"enable_checkpointing": True, "plugins": [AtomicCheckpointIO()]}
    trainer(folder, callbacks, max_steps=steps, **saves).fit(task, loader([texts(seed=i) for i in range(steps)]))


def test_folders_hold_what_was_trained(tmp_path):
    task = byte_task(2)
    settings = {"model": {"init_args": {"template": "<{prompt}>", "max_new_tokens": 24, "prompt_field": None}}}
    (tmp_path / "config.yaml").write_text(json.dumps({"seed_everything": 1, **settings}))
    run(tmp_path, task)
    final = tmp_path / "final_checkpoint"
    original = read_original(final)
    config = {"model_name": None, "seed_everything": 1, **settings}
    (tmp_path / "backbone").mkdir()
    task.crowd.backbone.save_source(tmp_path / "backbone")
    checkpoint = tmp_path / "run" / "a.ckpt"
    for source in (final, tmp_path / "peft_final", tmp_path / "back"):  # the last is written in the first round
        convert(source, checkpoint, tmp_path / "backbone")
        assert load_checkpoint(checkpoint)["zoo"]["options"] == {"template": "<{prompt}>", "max_new_tokens": 24}
        if not (tmp_path / "back").exists():
            convert(checkpoint, tmp_path / "back")
    assert original.progress == {"epoch": 1, "global_step": 6, "config": config, "completed": True}
    assert original.backbone["sha256"] == task.crowd.backbone.fingerprint()
    peft = read_peft(tmp_path / "peft_final")
    for agent in range(2):
        for name, value in task.crowd.agents.adapter(agent).items():
            assert torch.equal(original.weights[agent][name], value) and torch.equal(peft.weights[agent][name], value)
    assert PretrainedTokenizer(str(final / "tokenizer")).encode("abc") == task.tokenizer.encode("abc")
    step = json.loads((tmp_path / "checkpoint_step_6" / "training_progress.json").read_text())
    assert step["global_step"] == 6 and "completed" not in step


def test_folders_follow_the_checkpoints(tmp_path):
    for name in ("checkpoint_step_one", "checkpoint_step_1_old", "peft_step_one"):  # a user's
        (tmp_path / name).mkdir(parents=True)
    names: list[list[str]] = []

    def record(*_) -> None:
        names.append([path.name for path in tmp_path.glob("peft_step_[2-9]")])

    run(tmp_path, byte_task(2), others=[LambdaCallback(on_train_batch_end=record)])
    # recorded before the save of every second batch: one folder for the one checkpoint that remains
    assert names == [[], [], ["peft_step_2"], ["peft_step_2"], ["peft_step_4"], ["peft_step_4"]]
    assert [path.stem for path in tmp_path.glob("*.ckpt")] == ["step_00000006"]
    assert {path.name for path in tmp_path.glob("checkpoint_*")} == {
        "checkpoint_step_6", "checkpoint_step_one", "checkpoint_step_1_old",
    }  # fmt: skip
    assert {path.name for path in tmp_path.glob("peft_step_*")} == {"peft_step_one", "peft_step_6"}
    run(tmp_path, byte_task(2))  # what a run left is replaced


def test_other_tasks_averages_and_folders_of_other_programs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="CrowdTask, not PretrainTask"):
        run(tmp_path / "pretrain", pretrain_task(), 2)
    with pytest.raises(ValueError, match="EMA"):
        run(tmp_path / "averages", byte_task(2), others=[EMA(["crowd"])])
    for name in ("checkpoint_step_1", "final_checkpoint", "peft_step_1", "peft_final"):
        folder = tmp_path / name / name
        (folder / "agent0").mkdir(parents=True)
        (folder / "ci_llm_meta_config.json").write_text("{}")
        save_file({"a": torch.ones(1)}, folder / "agent0" / "adapter_model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=f"{name} is another program's"):
            run(tmp_path / name, byte_task(2))
        assert folder.is_dir()
