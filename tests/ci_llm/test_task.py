"""The crowd's task: its loss, parts of a step, modes, scores, what a checkpoint holds."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import byte_task, loader, pretrain_task, rows, task, texts, trainer, weights
from zoo.ci_llm.aggregation.aggregator import aggregate, uniform_log_weights
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.losses.objective import Objective, attended, label_count
from zoo.training.task import WeightedMeans

LAMBDA = 0.5


def diversity(**arguments) -> Diversity:
    return Diversity(**{"weight": LAMBDA, "projections": 8, "strategy": "answer_mean", **arguments})


def logged(made) -> dict[str, torch.Tensor]:
    """Let a task keep what it logs."""
    kept: dict[str, torch.Tensor] = {}
    made.log_terms = lambda stage, terms, **_: kept.update({f"{stage}/{k}": v for k, v in terms.items()})
    return kept


def trained(folder: Path, batches, crowd=None, steps: int = 1, **arguments):
    made = task(crowd, **{key: value for key, value in arguments.items() if key != "accumulate"})
    trainer(folder, max_steps=steps, accumulate_grad_batches=arguments.get("accumulate", 1)).fit(made, loader(batches))
    return weights(made)


def assert_close(ours, theirs, tolerance: float = 1e-6) -> None:
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=tolerance, rtol=1e-5)


def largest_difference(ours, theirs) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def test_loss_is_the_mean_of_the_agents_less_what_diversity_is_worth():
    batch, term = texts(), diversity()
    made = task(diversity=term)
    kept = logged(made)
    loss = made.training_step(batch, 0)
    output = made.crowd.outputs(batch["input_ids"], batch["attention_mask"], hidden=True)
    each = losses(output.logits, batch["labels"])
    value = term.value(term.represent(output.logits, output.hidden, batch["attention_mask"], batch["labels"]), 0)
    torch.testing.assert_close(loss, each.mean() - LAMBDA * value)
    assert value > 1e-4
    torch.testing.assert_close(kept["train/loss"], loss.detach())
    torch.testing.assert_close(kept["train/task_loss"], each.mean().detach())
    torch.testing.assert_close(kept["train/swd_loss"], value.detach())
    torch.testing.assert_close(torch.stack([kept[f"train/loss_agent_{k}"] for k in range(3)]), each.detach())


def own_texts() -> dict[str, torch.Tensor]:
    """Texts of their own for three agents; their numbers of labels differ."""
    parts = [texts(seed=seed) for seed in range(3)]
    return {key: torch.stack([part[key] for part in parts]) for key in parts[0]}


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("make", [texts, own_texts])
@pytest.mark.parametrize("mode", [("batched", None), ("chunked", 2)], ids=str)
@pytest.mark.parametrize(
    "term",
    [
        None,
        {"space": "hidden", "strategy": "mean_pool"},
        *({"space": space, "strategy": each} for space in ("logits", "probs") for each in ("answer_mean", "mean_pool")),
        {"space": "logits", "strategy": "last_token"},
        {"space": "logits", "strategy": "last_token", "mask": False},
        {"kind": "js", "strategy": "last_token"},
        {"kind": "kl", "strategy": "answer_tokens"},
    ],
    ids=str,
)
def test_loss_and_gradients_are_those_of_logits_everywhere(term, mode, make, shift):
    batch = make()
    if term and term["strategy"] == "answer_tokens" and make is own_texts:
        pytest.skip("refused: it compares agents that read the same texts")
    term = None if term is None else diversity(**term)
    crowd = crowd_parts.crowd(mode=mode[0], chunk=mode[1])
    found = Objective(batch, term, shift=shift).of(crowd)
    ours = torch.autograd.grad(found.total, list(crowd.agents.parameters()))
    whole = crowd_parts.crowd()
    output = whole.outputs(batch["input_ids"], batch["attention_mask"], hidden=True)
    each = losses(output.logits, batch["labels"], shift=shift)
    total = each.mean()
    if term is not None:
        points = term.represent(output.logits, output.hidden, batch["attention_mask"], batch["labels"])
        total = total + term.loss(term.value(points))
    theirs = torch.autograd.grad(total, list(whole.agents.parameters()))
    torch.testing.assert_close(found.losses, each.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.total.detach(), total.detach(), atol=1e-6, rtol=1e-5)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("make", "places"), [(texts, 12), (own_texts, 12)])
def test_logits_are_computed_where_a_label_is_predicted_and_nowhere_else(make, places):
    """4 texts of 8 tokens have 12 labels: 12 of 32 positions."""
    made, seen = task(diversity=diversity()), []
    head = made.crowd.backbone.model.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: seen.append(output.shape[:-1].numel()))
    batch = make()
    made.training_step(batch, 0)
    if batch["labels"].ndim == 2:
        made.evaluate(batch, 0, "val")
    assert set(seen) == {3 * places}


def test_pretraining_on_answers_computes_logits_where_labels_are():
    made, seen = pretrain_task(whole_text=False), []
    head = made.backbone.model.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: seen.append(output.shape[:-1].numel()))
    made.training_step(texts(), 0)
    made.evaluate(texts(), 0, "val")
    assert seen == [12, 12]


def test_without_weight_nothing_is_requested(monkeypatch):
    made = task(diversity=diversity(weight=0.0))
    kept = logged(made)
    asked = []
    run = made.crowd.run
    monkeypatch.setattr(made.crowd, "run", lambda *a, **k: asked.append(k.get("hidden", False)) or run(*a, **k))
    loss = made.training_step(texts(), 0)
    assert asked == [False]
    assert "train/swd_loss" not in kept
    torch.testing.assert_close(loss, task().training_step(texts(), 0))


@pytest.mark.parametrize("mode", ["sequential", "chunked"])
def test_modes_take_the_same_step(mode, tmp_path):
    ends = [
        trained(
            tmp_path, [texts()], crowd_parts.crowd(mode=m, chunk=2 if m == "chunked" else None), diversity=diversity()
        )
        for m in ("batched", mode)
    ]
    assert_close(*ends)


@pytest.mark.parametrize("agent_data", ["shared", "own"])
def test_accumulated_batches_equal_the_larger_one(agent_data, tmp_path):
    whole = texts()
    parts = [rows(whole, 0), rows(whole, 1, 2), rows(whole, 3)]
    if agent_data == "own":  # each agent reads the texts in an order of its own

        def streams(batch):
            return {key: torch.stack([value, value.flip(0), value]) for key, value in batch.items()}

        whole, parts = streams(whole), [streams(part) for part in parts]
    start = weights(task())
    end = trained(tmp_path, [whole])
    assert_close(trained(tmp_path, parts, accumulate=3), end)
    # an epoch may end within an accumulation
    assert_close(trained(tmp_path, parts, accumulate=5), end)
    plain = trained(tmp_path, parts, accumulate=3, normalise="batch")
    assert largest_difference(plain, end) > 0.05 * largest_difference(start, end)


def test_diversity_counts_by_the_tokens_of_its_batch(tmp_path):
    whole, term = texts(), diversity()
    parts = [rows(whole, 0, 1), rows(whole, 2, 3)]
    start = task()
    gradients, counts = [], []
    for part in parts:
        made = task(diversity=term, normalise="batch")
        gradients.append(torch.autograd.grad(made.training_step(part, 0), list(made.crowd.agents.parameters())))
        counts.append(float(label_count(part["labels"], 3)))
    end = trained(tmp_path, parts, accumulate=2, diversity=term)
    for (name, value), first, second in zip(weights(start).items(), *gradients, strict=True):
        step = 0.1 * (counts[0] * first + counts[1] * second) / sum(counts)
        torch.testing.assert_close(end[name], value - step, atol=1e-6, rtol=1e-5)


def test_packed_rows_have_the_loss_of_single_texts():
    made = task()
    single = texts(2)
    lengths = single["attention_mask"].sum(1).tolist()
    packed = {
        key: torch.cat([value[i, :length] for i, length in enumerate(lengths)])[None] for key, value in single.items()
    }
    packed["segment_ids"] = torch.repeat_interleave(torch.tensor([1, 2]), torch.tensor(lengths))[None]
    one = Objective(packed).of(made.crowd)
    torch.testing.assert_close(one.losses, Objective(single).of(made.crowd).losses)
    streams = {key: value.expand(3, *value.shape) for key, value in packed.items()}
    torch.testing.assert_close(Objective(streams).of(made.crowd).losses, one.losses)
    assert attended(streams)[0].shape == (3, 1, 1, sum(lengths), sum(lengths))


def test_scores_are_means_over_tokens_whatever_the_batches():
    made = task().eval()
    whole = texts()
    logits = made.crowd(whole["input_ids"], whole["attention_mask"])
    nll = losses(logits, whole["labels"]).detach()
    goals = torch.nn.functional.pad(whole["labels"][:, 1:], (0, 1), value=-100)
    joined = aggregate(logits[:, goals >= 0].log_softmax(-1), uniform_log_weights(3, 1)[0])
    ensemble = -joined.gather(-1, goals[goals >= 0][:, None]).mean().detach()
    with torch.no_grad():
        for split in ([(0, 1, 2, 3)], [(0, 1, 2), (3,)]):
            made._means.reset()
            for numbers in split:
                made._means.add(*made.evaluate(rows(whole, *numbers), 0, "val"))
            found = made._means.compute()
            assert found["loss"] == pytest.approx(float(nll.mean()), abs=1e-5)
            assert found["nll_best"] == pytest.approx(float(nll.min()), abs=1e-5)
            assert found["nll_agent_2"] == pytest.approx(float(nll[2]), abs=1e-5)
            assert found["nll_ensemble"] == pytest.approx(float(ensemble), abs=1e-5)
            assert found["ambiguity"] == pytest.approx(found["loss"] - found["nll_ensemble"], abs=1e-6)
            assert found["ambiguity"] > 0 and found["pairwise_kl"] > 0


def test_best_agent_is_that_of_the_whole_set():
    means = task()._means
    means.add({"nll_agent_0": 1.0, "nll_agent_1": 3.0})
    means.add({"nll_agent_0": 5.0, "nll_agent_1": 2.0})
    assert means.compute()["nll_best"] == 2.5
    assert isinstance(means, WeightedMeans)


def test_predictions_are_scored_in_blocks(monkeypatch):
    made = task().eval()
    with torch.no_grad():
        whole, count = made.evaluate(texts(), 0, "val")
        monkeypatch.setattr("zoo.ci_llm.task.BLOCK_VALUES", 3 * 40 * 5)
        blocks, _ = made.evaluate(texts(), 0, "val")
    assert count == sum((5, 2, 1, 4)) and blocks.keys() == whole.keys()
    for key, value in whole.items():
        assert float(blocks[key]) == pytest.approx(float(value), abs=1e-6)


def test_batch_without_labels_counts_nothing():
    batch = texts()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    made = task(diversity=diversity())
    logged(made)
    assert made.evaluate(batch, 0, "val") == ({}, 0)
    assert made.training_step(batch, 0).isfinite()


def test_only_adapters_train_and_are_saved(tmp_path):
    made = task(optimizer=torch.optim.AdamW)
    run = trainer(tmp_path, max_steps=1)
    before = {key: value.clone() for key, value in made.crowd.backbone.state_dict().items()}
    run.fit(made, loader([texts()]))
    run.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == {f"crowd.agents.{name}" for name in weights(made)}
    assert saved["frozen"]["crowd.backbone"]["sha256"] == made.crowd.backbone.fingerprint()
    assert len(saved["optimizer_states"][0]["state"]) == len(weights(made))
    assert all(torch.equal(value, before[key]) for key, value in made.crowd.backbone.state_dict().items())


def test_tokenizer_of_another_backbone_is_refused(tmp_path):
    with pytest.raises(ValueError, match="259 tokens, the backbone's vocabulary 40"):
        trainer(tmp_path, max_steps=1).fit(task(tokenizer=ByteTokenizer()), loader([texts()]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_length": 65}, r"max_length is 65, the backbone's context 64 tokens"),
        ({"max_length": 64, "packing": True}, r"packing puts several texts into a row"),
    ],
)
def test_data_that_do_not_fit_are_refused(settings, said):
    made = byte_task(diversity=diversity())
    data = TextData(ByteTokenizer(), **settings)
    made.trainer = SimpleNamespace(datamodule=data, checkpoint_callbacks=[], strategy=None)
    with pytest.raises(ValueError, match=said):
        made.setup("fit")


def test_items_of_a_batch_are_its_texts():
    batch = texts(4)
    own = {key: torch.stack([value] * 3) for key, value in batch.items()}
    assert task().count_items(batch) == task().count_items(own) == 4


def test_unknown_normalisation_is_refused():
    with pytest.raises(ValueError, match="normalise"):
        task(normalise="tokens")
