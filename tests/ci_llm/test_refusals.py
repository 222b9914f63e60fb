"""Checkpoints of another crowd: refused in one line that says what differs."""

import pytest

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import loader, task, texts, trainer


def described(count: int, seed: int = 0):
    made = task(crowd_parts.crowd(count=count, backbone={"seed": seed}))
    backbone = {"class_path": "zoo.ci_llm.Backbone", "init_args": {"source": f"folder {seed}"}}
    agents = {"class_path": "zoo.ci_llm.Agents", "init_args": {"count": count}}
    crowd = {"class_path": "zoo.ci_llm.Crowd", "init_args": {"backbone": backbone, "agents": agents}}
    made.specs = {"components": {"crowd": crowd, "tokenizer": None}}
    return made


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"count": 3}, "agents.init_args.count is 2 in the checkpoint and 3 in the config"),
        ({"count": 2, "seed": 1}, r"belongs to crowd\.backbone = .*sha256 \w{16}.* and not to"),
    ],
    ids=("agents", "backbone"),
)
def test_another_crowd(other, said, tmp_path):
    first = trainer(tmp_path, max_steps=1)
    first.fit(described(2), loader([texts()]))
    first.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    with pytest.raises(ValueError, match=said) as raised:
        trainer(tmp_path, max_steps=2).fit(
            described(**other), loader([texts()]), ckpt_path=tmp_path / "a.ckpt", weights_only=True
        )
    assert "\n" not in str(raised.value)
