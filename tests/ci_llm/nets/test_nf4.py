"""A backbone in 4 bits trains, resumes and generates on the CPU; bitsandbytes is imported for it only."""

import sys
from functools import partial
from itertools import pairwise

import pytest
import torch

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import loader, task, texts, trainer, weights
from zoo.ci_llm import Backbone, Mean
from zoo.ci_llm.inference.generate import generate
from zoo.training.callbacks.checkpoint_contents import CheckpointContents

CONFIG = {**crowd_parts.CONFIGS["llama"], "hidden_size": 64, "intermediate_size": 64, "head_dim": 16}


def made(folder):
    crowd = crowd_parts.crowd(count=2, backbone={"config": None, "source": str(folder), "quantization": "nf4"})
    return task(crowd, optimizer=partial(torch.optim.Adam, lr=0.01))


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # the second trainer saves nothing
def test_it_trains_resumes_and_writes(tmp_path):
    (tmp_path / "plain").mkdir()
    Backbone(config=CONFIG).save_source(tmp_path / "plain")
    batches, full = [texts()] * 6, made(tmp_path / "plain")
    # checkpointing hashes the backbone at the start: on the CPU bitsandbytes packs it again at its first use
    first = trainer(tmp_path, max_steps=4, enable_checkpointing=True, callbacks=[CheckpointContents()])
    first.fit(full, loader(batches))
    first.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == {f"crowd.agents.{name}" for name in weights(full)}
    straight, resumed, losses = made(tmp_path / "plain"), made(tmp_path / "plain"), []
    step = straight.training_step
    straight.training_step = lambda *args: losses.append(step(*args)) or losses[-1]
    trainer(tmp_path, max_steps=6).fit(straight, loader(batches))
    trainer(tmp_path, max_steps=6, callbacks=[CheckpointContents()]).fit(
        resumed, loader(batches), ckpt_path=tmp_path / "a.ckpt", weights_only=True
    )
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert all(torch.equal(value, weights(straight)[name]) for name, value in weights(resumed).items())
    ids = torch.arange(3, 9).view(2, 3)
    written = generate(resumed.crowd, ids, torch.ones_like(ids), Mean(), 4)
    with torch.no_grad():
        log_probs = resumed.crowd(ids, torch.ones_like(ids))[:, :, -1].float().log_softmax(-1)
    assert torch.equal(written[:, 3], log_probs.exp().mean(0).argmax(-1))


def test_nothing_else_imports_bitsandbytes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # importing it fails
    crowd_parts.crowd()(*crowd_parts.batch()[:2])
    Backbone(config=CONFIG).save_source(tmp_path)
    with pytest.raises(ValueError, match="nf4 needs bitsandbytes"):
        made(tmp_path)
    with pytest.raises(ValueError, match="random weights are not quantised"):
        Backbone(config=CONFIG, quantization="nf4")
