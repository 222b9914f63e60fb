import pytest
import torch

from tests.ci_llm import crowd_parts
from zoo.ci_llm import BayesianAverage, ByteTokenizer, Dirichlet, FittedMixture, Geometric, Mean, Sampling, Vote
from zoo.ci_llm.data.tokens import pad_left
from zoo.ci_llm.inference.generate import generate, generate_texts

IDS = torch.tensor([[0, 0, 5, 6, 7], [0, 9, 11, 12, 13], [20, 21, 22, 23, 24]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
NEW = 6


def crowd(name="llama", vocabulary=40, **agents):
    """A crowd in training mode, with room for 32 tokens, or 64 of bytes."""
    config = {**crowd_parts.CONFIGS[name], "vocab_size": vocabulary, "initializer_range": 0.3}
    config["max_position_embeddings"] = 32 if vocabulary == 40 else 64
    return crowd_parts.crowd(name, backbone={"config": config}, **{"std": 0.2, "dropout": 0.1, **agents}).train()


@pytest.fixture(scope="module")
def llama():
    return crowd()


@torch.no_grad()
def uncached(crowd, ids, mask, rule, steps=NEW):
    """All K forwards over the whole text for every token, as the original does."""
    crowd.agents.eval()
    for _ in range(steps):
        log_probs = crowd(ids, mask).log_softmax(-1)
        weights = rule.start(3, len(ids))
        prompt_log_probs = log_probs[:, :, :-1].gather(-1, ids[:, 1:].expand(3, -1, -1)[..., None]).squeeze(-1)
        weights = rule.weights_along_text(weights, prompt_log_probs, mask[:, :-1])[-1]
        chosen = rule.combine(log_probs[:, :, -1], weights).argmax(-1)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return ids


@pytest.mark.parametrize(
    "rule", [Mean(), FittedMixture([3, 1, 1]), Geometric(), BayesianAverage()], ids=lambda rule: type(rule).__name__
)
def test_the_cache_changes_nothing(llama, rule):
    texts = generate(llama, IDS, MASK, rule, NEW)
    assert torch.equal(texts, uncached(llama, IDS, MASK, rule))


@pytest.mark.parametrize("made", [{"name": "gpt2"}, {"name": "gemma2"}, {"top_layers": 1}], ids=str)
def test_other_backbones_and_a_shared_trunk(made):
    other = crowd(**made)
    assert torch.equal(generate(other, IDS, MASK, Mean(), NEW), uncached(other, IDS, MASK, Mean()))
    apart = generate(other, IDS, MASK, Vote(), NEW)
    with other.select_agents(1):
        assert torch.equal(generate(other, IDS, MASK, Mean(), NEW), apart[1])


def test_rows_end_by_themselves(llama):
    free = generate(llama, IDS, MASK, Mean(), NEW)
    ends = [int(free[0, 6]), int(free[1, 8])]
    texts = generate(llama, IDS, MASK, Mean(), NEW, eos=ends, pad=39)
    for row in range(3):
        stop = next((at for at in range(5, 5 + NEW) if int(free[row, at]) in ends), 5 + NEW - 1)
        assert torch.equal(texts[row, : stop + 1], free[row, : stop + 1])
        assert (texts[row, stop + 1 :] == 39).all()
    assert texts[0].tolist().count(39) >= 1
    first = generate(llama, IDS, MASK, Mean(), 1)[:, -1].tolist()
    assert generate(llama, IDS, MASK, Mean(), NEW, eos=first).shape == (3, 6)  # when all have ended


@pytest.mark.parametrize("rule", [Mean(), Dirichlet(0.3), Vote()], ids=lambda rule: type(rule).__name__)
def test_a_text_depends_on_its_seed_and_not_on_the_batch(llama, rule):
    sampling = Sampling(temperature=1.0, top_p=0.95)
    full = generate(llama, IDS, MASK, rule, NEW, sampling=sampling, seeds=[4, 5, 6])
    again = generate(llama, IDS, MASK, rule, NEW, sampling=sampling, seeds=[4, 5, 7])
    single = generate(llama, IDS[1:2, 1:], MASK[1:2, 1:], rule, NEW, sampling=sampling, seeds=[5])
    assert torch.equal(full[..., 1, 5:], single[..., 0, 4:])
    assert torch.equal(full[..., :2, :], again[..., :2, :])
    assert not torch.equal(full[..., 2, :], again[..., 2, :])
    shorter = generate(llama, IDS, MASK, rule, NEW - 2, sampling=sampling, seeds=[4, 5, 6])
    assert torch.equal(full[..., :-2], shorter)


def test_invalid_prompts_are_refused(llama):
    with pytest.raises(ValueError, match="padded on the right"):
        generate(llama, IDS, MASK.flip(1), Mean(), NEW)
    with pytest.raises(ValueError, match="do not fit"):
        generate(llama, IDS, MASK, Mean(), 28)


def test_texts_end_at_stop_strings_across_tokens_and_at_any_eos():
    tokenizer = ByteTokenizer()
    byte_crowd = crowd(vocabulary=259)
    prompts = [tokenizer.encode("abc"), tokenizer.encode("a")]
    ids, mask = pad_left(prompts, 0)
    sampled = {"sampling": Sampling(1.0), "seeds": [6, 7]}
    plain = generate(byte_crowd, ids, mask, Mean(), 12, **sampled)[:, 3:]
    texts = [tokenizer.decode(row) for row in plain.tolist()]
    stop = tokenizer.decode(plain[0, 3:5].tolist())
    answers = generate_texts(byte_crowd, tokenizer, prompts, Mean(), 12, stop=[stop], **sampled)
    assert 0 < len(answers[0][0]) < len(texts[0])
    assert answers == [[text.partition(stop)[0]] for text in texts]
    byte_crowd.backbone.model.generation_config.eos_token_id = [2, int(plain[0, 3]), 999]
    (text,), _ = generate_texts(byte_crowd, tokenizer, prompts, Mean(), 12, **sampled)
    assert text == tokenizer.decode(plain[0, :3].tolist())
