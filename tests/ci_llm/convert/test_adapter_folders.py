"""Folders that a training writes beside its checkpoints: content, size, which are kept, who writes."""

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import byte_task, loader, pretrain_task, task, texts, trainer, weights
from zoo.ci_llm.convert.adapter_folders import AdapterFolders
from zoo.ci_llm.convert.read import read_original, read_peft
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints
from zoo.training.resume import RNGState


def size(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths)


def run(folder: Path, made, steps: int = 6, callback: AdapterFolders | None = None, others=(), **arguments):
    checkpoints = Checkpoints(every_n_steps=2, every_minutes=None, keep_last=1)
    made_trainer = trainer(
        folder, max_steps=steps, enable_checkpointing=True, plugins=[AtomicCheckpointIO()],
        callbacks=[callback or AdapterFolders(), *others, RNGState(), checkpoints], **arguments,
    )  # fmt: skip
    made_trainer.fit(made, loader([texts(seed=i) for i in range(steps)]))
    return made_trainer


def test_folders_hold_what_was_trained(tmp_path):
    made = byte_task(2)
    (tmp_path / "config.yaml").write_text("seed_everything: 1\n")
    run(tmp_path, made)
    final = tmp_path / "final_checkpoint"
    found = read_original(final)
    assert found.progress["completed"] is True and found.progress["global_step"] == 6
    assert found.progress["config"] == {"model_name": None, "seed_everything": 1}
    assert found.backbone["sha256"] == made.crowd.backbone.fingerprint()
    for agent in range(2):
        ours = made.crowd.agents.adapter(agent)
        for theirs in (found.weights[agent], read_peft(tmp_path / "peft_final").weights[agent]):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(theirs[key], value) for key, value in ours.items())
    assert PretrainedTokenizer(str(final / "tokenizer")).encode("abc") == made.tokenizer.encode("abc")
    step = json.loads((tmp_path / "checkpoint_step_6" / "training_progress.json").read_text())
    assert step["global_step"] == 6 and "completed" not in step


def test_folders_of_the_original_are_kept(tmp_path):
    theirs = tmp_path / "checkpoint_step_1"
    theirs.mkdir()
    (theirs / "ci_llm_meta_config.json").write_text("{}")
    with pytest.raises(ValueError, match="checkpoint_step_1 is another program's"):
        run(tmp_path, byte_task(2))
    assert theirs.is_dir()


def test_folders_follow_the_checkpoints(tmp_path):
    old = tmp_path / "checkpoint_step_1"
    old.mkdir(parents=True)
    (old / "ci_llm_meta_config.json").write_text('{"backbone": {}}')
    (tmp_path / "checkpoint_step_one").mkdir()
    seen: list[list[str]] = []
    note = LambdaCallback(
        on_train_batch_end=lambda *_: seen.append([path.name for path in tmp_path.glob("peft_step*")])
    )
    run(tmp_path, byte_task(2), others=[note])
    # noted before the save of every second batch: one folder for the one checkpoint that is kept
    assert seen == [[], [], ["peft_step_2"], ["peft_step_2"], ["peft_step_4"], ["peft_step_4"]]
    assert [path.stem for path in tmp_path.glob("*.ckpt")] == ["step_00000006"]
    assert {path.name for path in tmp_path.glob("checkpoint_*")} == {"checkpoint_step_6", "checkpoint_step_one"}
    assert [path.name for path in tmp_path.glob("peft_step_*")] == ["peft_step_6"]


def test_peft_folders_can_be_left_out(tmp_path):
    run(tmp_path, byte_task(2), 2, AdapterFolders(peft=False))
    assert (tmp_path / "final_checkpoint").is_dir() and not list(tmp_path.glob("peft*"))


def test_nothing_is_written_where_nothing_may_be(tmp_path):
    run(tmp_path, byte_task(2), 2, fast_dev_run=True)
    assert not list(tmp_path.glob("*checkpoint*"))


def test_other_tasks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="CrowdTask, not PretrainTask"):
        run(tmp_path, pretrain_task(), 2)


def test_sizes_of_checkpoint_and_folders(tmp_path):
    config = {**crowd_parts.CONFIGS["llama"], "vocab_size": 259, "hidden_size": 128, "intermediate_size": 256}
    crowd = crowd_parts.crowd(count=4, backbone={"config": config}, rank=32)
    made = task(crowd, optimizer=torch.optim.AdamW, tokenizer=byte_task().tokenizer)
    run(tmp_path, made, 2)
    adapters = sum(value.numel() * value.element_size() for value in weights(made).values())
    assert size(*(tmp_path / "final_checkpoint").glob("agent*")) <= 1.1 * adapters
    assert size(*(tmp_path / "peft_final").glob("*/*")) <= 1.1 * adapters
    (checkpoint,) = tmp_path.glob("*.ckpt")
    assert 3 * adapters < size(checkpoint) <= 3.3 * adapters
    keys = torch.load(checkpoint, weights_only=True)["state_dict"].keys()
    assert all(key.startswith("crowd.agents.") for key in keys)
