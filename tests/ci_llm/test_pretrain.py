"""A language model from nothing: what is learnt, what is written, what it says."""

import pytest
import torch

from tests.ci_llm.task_parts import BYTES, loader, pretrain_task, texts, trainer
from zoo.ci_llm import Backbone, PretrainedTokenizer
from zoo.ci_llm.losses.likelihood import losses
from zoo.runs.export import write_export
from zoo.runs.load import load
from zoo.training.callbacks.ema import EMA


@pytest.mark.parametrize("whole_text", [True, False])
def test_prompts_are_learnt_or_not(whole_text):
    made = pretrain_task(whole_text=whole_text)
    made.log_terms = lambda *args, **kwargs: None
    batch = texts()
    logits = made.backbone(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"]
    if whole_text:
        labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"], -100)
    torch.testing.assert_close(made.training_step(batch, 0), losses(logits[None], labels)[0])
    score, count = made.evaluate(batch, 0, "val")
    torch.testing.assert_close(score["loss"], losses(logits[None], batch["labels"])[0])
    assert count == 12 and 0 <= score["accuracy"] <= 1
    nothing = {**batch, "labels": torch.full_like(labels, -100)}
    assert made.evaluate(nothing, 0, "val") == ({}, 0)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_validation_writes_a_backbone_that_agents_can_use(averaged, tmp_path):
    made, ema = pretrain_task(), EMA(["backbone"], decay=0.5)
    run = trainer(
        tmp_path, max_steps=2, val_check_interval=2, num_sanity_val_steps=0, callbacks=[ema] if averaged else []
    )
    run.fit(made, loader([texts(), texts(seed=1)]), loader([texts(seed=2)]))
    written = Backbone(source=str(tmp_path / "backbone")).model.state_dict()
    expected = made.backbone.model.state_dict()
    if averaged:
        assert any(not torch.equal(written[name], value) for name, value in expected.items())
        expected = {name.removeprefix("backbone.model."): value for name, value in ema.shadow.items()}
    assert expected and all(torch.equal(written[name], value) for name, value in expected.items())
    assert PretrainedTokenizer(str(tmp_path / "backbone")).encode("abc") == made.tokenizer.encode("abc")


@pytest.mark.parametrize("tied", [False, True])
def test_its_export_answers_the_same(tied, tmp_path):
    made = pretrain_task(tied)  # most language models are
    trainer(tmp_path, max_steps=1).fit(made, loader([texts()]))
    model = made.inference()
    config = {**BYTES, "max_position_embeddings": 64, "tie_word_embeddings": tied}
    backbone = {"class_path": "zoo.ci_llm.LearningBackbone", "init_args": {"config": config}}
    parts = {"backbone": backbone, "tokenizer": {"class_path": "zoo.ci_llm.ByteTokenizer"}}
    specs = {"inference": "zoo.ci_llm.LanguageModel", "components": parts, "options": {"max_new_tokens": 8}}
    specs["options"]["template"] = "{prompt}"
    write_export(tmp_path / "export", specs, model.modules(), "run")
    assert load(tmp_path / "export")(["2 + 3"]) == model(["2 + 3"])


def test_it_answers_and_stays_as_it_is():
    made = pretrain_task()
    model = made.inference()
    (answer,) = model(["2 + 3"])
    ids = torch.tensor([[1, *made.tokenizer.encode("2 + 3")]])
    with torch.no_grad():
        greedy = made.backbone.model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert answer == made.tokenizer.decode(greedy.tolist()).strip()
