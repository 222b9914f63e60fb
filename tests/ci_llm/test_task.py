"""The crowd's task: its loss, parts of a step, modes, scores, the content of a checkpoint."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import byte_task, loader, pretrain_task, rows, task, texts, trainer, weights
from zoo.ci_llm import ByteTokenizer, Diversity, TextData
from zoo.ci_llm.aggregation import aggregate, uniform_log_weights
from zoo.ci_llm.data.text_files import TextFormat
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.losses.objective import CrowdObjective
from zoo.common.tensors import state_digest
from zoo.training.callbacks.checkpoint_contents import CheckpointContents

LAMBDA = 0.5


def diversity(**arguments) -> Diversity:
    return Diversity(**{"weight": LAMBDA, "projections": 8, "strategy": "answer_mean", **arguments})


def record_terms(made) -> dict[str, torch.Tensor]:
    """Let a task store the terms that it logs."""
    terms: dict[str, torch.Tensor] = {}
    made.log_terms = lambda stage, values, **_: terms.update({f"{stage}/{k}": v for k, v in values.items()})
    return terms


def train(folder: Path, batches, crowd=None, accumulate: int = 1, **arguments):
    made = task(crowd, **arguments)
    trainer(folder, max_steps=1, accumulate_grad_batches=accumulate).fit(made, loader(batches))
    return weights(made)


def largest_difference(first, second) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in second)


def test_loss_is_the_mean_of_the_agents_minus_weighted_diversity():
    batch, term = texts(), diversity()
    made = task(diversity=term)
    terms = record_terms(made)
    loss = made.training_step(batch, 0)
    expected = CrowdObjective(batch, term).compute(made.crowd)  # compared with the definition below
    each, value = expected.losses, expected.diversity
    assert value > 1e-4 and loss == terms["train/loss"]
    torch.testing.assert_close(loss.detach(), each.mean() - LAMBDA * value)
    torch.testing.assert_close(terms["train/task_loss"], each.mean())
    torch.testing.assert_close(terms["train/swd_loss"], value)
    torch.testing.assert_close(torch.stack([terms[f"train/loss_agent_{number}"] for number in range(3)]), each)
    alone = task(crowd_parts.crowd(count=1), diversity=diversity(shared=False))
    terms = record_terms(alone)
    alone.training_step(batch, 0)
    assert terms["train/swd_loss"] == 0


def separate_texts() -> dict[str, torch.Tensor]:
    """Texts for each of three agents; their numbers of labels differ."""
    parts = [texts(seed=seed) for seed in range(3)]
    return {key: torch.stack([part[key] for part in parts]) for key in parts[0]}


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("make", [texts, separate_texts])
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(None, ("batched", None)), ("answer_mean", ("chunked", 2)), ("last_token", ("batched", None))],
    ids=str,
)
def test_loss_and_gradients_are_those_of_logits_everywhere(strategy, mode, make, shift):
    batch = make()
    term = None if strategy is None else diversity(strategy=strategy)
    crowd = crowd_parts.crowd(mode=mode[0], chunk=mode[1])
    result = CrowdObjective(batch, term, shift=shift).compute(crowd)
    gradients = torch.autograd.grad(result.total, list(crowd.agents.parameters()))
    plain = crowd_parts.crowd()
    output = plain.outputs(batch["input_ids"], batch["attention_mask"], hidden=True)
    each = losses(output.logits, batch["labels"], shift=shift)
    total = each.mean()
    if term is not None:
        points = term.represent(output.hidden, batch["attention_mask"], batch["labels"])
        total = total + term.loss(term.value(points))
    expected = torch.autograd.grad(total, list(plain.agents.parameters()))
    torch.testing.assert_close(result.losses, each.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.total.detach(), total.detach(), atol=1e-6, rtol=1e-5)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-6, rtol=1e-4)


def test_logits_are_computed_at_the_labels_only():
    """4 texts of 8 tokens have 12 labels."""
    crowd_task, pretraining, counts = task(diversity=diversity()), pretrain_task(whole_text=False), []
    for model in (crowd_task.crowd.backbone.model, pretraining.backbone.model):
        model.get_output_embeddings().register_forward_hook(lambda m, a, output: counts.append(output[..., 0].numel()))
    crowd_task.training_step(separate_texts(), 0)
    for each in (crowd_task, pretraining):
        each.training_step(texts(), 0)
        each.evaluate(texts(), 0, "val")
    assert counts == [36, 36, 36, 12, 12]


def test_the_loss_of_a_batch_is_its_mean_wherever_it_stands_in_a_step():
    made, parts = task(), [rows(texts(), 0), rows(texts(), 1, 2)]
    losses = [made.training_step(part, number) for number, part in enumerate(parts)]
    torch.testing.assert_close(losses, [task().training_step(part, 0) for part in parts])


@pytest.mark.parametrize("agent_data", ["shared", "separate"])
def test_accumulated_batches_equal_the_larger_one(agent_data, tmp_path):
    full = texts()
    parts = [rows(full, 0), rows(full, 1, 2), rows(full, 3)]
    if agent_data == "separate":

        def streams(batch):
            return {key: torch.stack([value, value.flip(0), value]) for key, value in batch.items()}

        full, parts = streams(full), [streams(part) for part in parts]
    start, end = weights(task()), train(tmp_path, [full])
    chunked = train(tmp_path, parts, crowd_parts.crowd(mode="chunked", chunk=2), accumulate=3)
    torch.testing.assert_close(chunked, end, atol=1e-6, rtol=1e-5)
    # an epoch may end within an accumulation
    torch.testing.assert_close(train(tmp_path, parts, accumulate=5), end, atol=1e-6, rtol=1e-5)
    plain = train(tmp_path, parts, accumulate=3, normalise="batch")
    assert largest_difference(plain, end) > 0.05 * largest_difference(start, end)


def test_scores_are_means_over_tokens_whatever_the_batches(monkeypatch):
    made = task().eval()
    full = texts()
    logits = made.crowd(full["input_ids"], full["attention_mask"])
    nll = losses(logits, full["labels"]).detach()
    targets = torch.nn.functional.pad(full["labels"][:, 1:], (0, 1), value=-100)
    joint = aggregate(logits[:, targets >= 0].log_softmax(-1), uniform_log_weights(3, 1)[0])
    ensemble = -joint.gather(-1, targets[targets >= 0][:, None]).mean().detach()
    for split, limit in (([(0, 1, 2, 3)], 2**26), ([(0, 1, 2), (3,)], 2**26), ([(0, 1, 2, 3)], 3 * 40 * 5)):
        monkeypatch.setattr("zoo.ci_llm.task.MAX_SCORED_VALUES", limit)
        made._means.reset()
        with torch.no_grad():
            for numbers in split:
                made._means.add(*made.evaluate(rows(full, *numbers), 0, "val"))
        scores = made._means.compute()
        expected = {"loss": nll.mean(), "nll_best": nll.min(), "nll_agent_2": nll[2], "nll_ensemble": ensemble}
        assert {name: scores[name] for name in expected} == pytest.approx(
            {name: float(value) for name, value in expected.items()}, abs=1e-5
        )
        assert scores["ambiguity"] == pytest.approx(scores["loss"] - scores["nll_ensemble"], abs=1e-6)
        assert scores["ambiguity"] > 0 and scores["pairwise_kl"] > 0


def test_only_adapters_train_and_are_saved(tmp_path):
    made = task(optimizer=torch.optim.AdamW)
    run = trainer(tmp_path, max_steps=1, callbacks=[CheckpointContents()])
    before = state_digest(made.crowd.backbone.state_dict())
    run.fit(made, loader([texts()]))
    run.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == {f"crowd.agents.{name}" for name in weights(made)}
    assert saved["frozen"]["crowd.backbone"]["sha256"] == made.crowd.backbone.fingerprint()
    assert state_digest(made.crowd.backbone.state_dict()) == before
    assert len(saved["optimizer_states"][0]["state"]) == len(weights(made))


def test_settings_that_do_not_fit_are_refused():
    made = task(tokenizer=ByteTokenizer())
    made.trainer = SimpleNamespace(datamodule=None, checkpoint_callbacks=[], strategy=None)
    with pytest.raises(ValueError, match="259 tokens, the backbone's vocabulary 40"):
        made.setup("fit")
    made, data = byte_task(), TextData(ByteTokenizer(), max_length=64, agents=7, agent_data="shuffled")
    made.trainer = SimpleNamespace(datamodule=data, checkpoint_callbacks=[], strategy=None)
    with pytest.raises(ValueError, match=r"agents is 7, the crowd has \d"):
        made.setup("test")
    with pytest.raises(ValueError, match=r"text_format\.template is .Question"):
        made.setup("fit")
    data.text_format = TextFormat(template="{prompt}")
    data.tokenizer = SimpleNamespace(fingerprint=str, vocab_size=40)
    with pytest.raises(ValueError, match="of 40 tokens, is not model"):
        made.setup("fit")
    for layer in (0, 1, -2):  # below what is adapted
        with pytest.raises(ValueError, match="first adapted block is 1 of 0 to 1"):
            task(crowd_parts.crowd(top_layers=1), diversity=Diversity(layer=layer))
