"""Prompts in, texts out: batches, votes, files, what a run's checkpoint gives."""

import json

import pytest
import torch

from tests.ci_llm.task_parts import byte_task, loader, texts, trainer
from zoo.ci_llm.aggregation.aggregator import Vote
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.inference.writer import Writer
from zoo.ci_llm.nets.sampling import Sampling

PROMPTS = ["2 + 3", "Ada has 12 apples. How many?", "x", "nine minus four"]


def writer(count: int = 2, **arguments) -> Writer:
    return byte_task(count, **arguments).inference().eval()


def test_answers_do_not_depend_on_the_batch():
    alone, together = writer(prompt_batch=1)(PROMPTS), writer(prompt_batch=3)(PROMPTS)
    assert alone == together and len(alone) == len(PROMPTS)
    drawn = {"sampling": Sampling(temperature=2.0)}
    assert writer(prompt_batch=1, **drawn)(PROMPTS) == writer(prompt_batch=4, **drawn)(PROMPTS) != alone
    assert writer(answer_seed=1, **drawn)(PROMPTS) != writer(**drawn)(PROMPTS)


def test_answer_is_what_generation_adds_to_the_prompt_in_its_template():
    made = writer(template="Q: {prompt} A:")
    tokenizer = ByteTokenizer()
    ids = torch.tensor([[*tokenizer.prefix, *tokenizer.encode("Q: 2 + 3 A:")]])
    found = generate(made.crowd, ids, torch.ones_like(ids), made.aggregator, 8, tokenizer.eos_id)[0, ids.shape[1] :]
    assert tokenizer.prefix == [1]
    assert made(["2 + 3"]) == [tokenizer.decode(found.tolist()).strip()]


def test_vote_takes_the_text_of_the_majority(monkeypatch):
    made = writer(3, aggregator=Vote())
    found = [" 5\n#### 5", " 4\n#### 4", " 6 - 1\n#### 5"]
    rows = [[*ByteTokenizer().encode(text), 2] for text in found]
    longest = max(map(len, rows))
    monkeypatch.setattr(
        "zoo.ci_llm.inference.generate.generate",
        lambda crowd, ids, *args: torch.tensor([[[*ids[0], *row, *[0] * (longest - len(row))]] for row in rows]),
    )
    assert made(["2 + 3"]) == ["5\n#### 5"]


def test_file_of_prompts(tmp_path):
    made = writer()
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"2 + 3"\n\n{"question": "x", "id": 7}\n')
    facts = made.process_file(source, target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    answers = made(["2 + 3", "x"])
    assert rows == [{"prompt": "2 + 3", "text": answers[0]}, {"question": "x", "id": 7, "text": answers[1]}]
    assert facts == {"prompts": 2, "characters": sum(map(len, answers))}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no input", "line 1: not JSON"),
        ('{"text": "a"}', "line 1: expected a text, or an object with a text prompt or question; found text"),
        ('"a"\n" "', "line 2: expected a text"),
        ('{"prompt": 3}', "line 1: expected"),
        ("", "holds no prompts"),
        (json.dumps("x" * 60), "do not fit into the backbone's context of 64"),
    ],
)
def test_bad_files_are_named_and_leave_nothing(content, message, tmp_path):
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        writer().process_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_arguments():
    with pytest.raises(ValueError, match="put it into a list"):
        writer()("2 + 3")
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        writer()(["a", " "])
    with pytest.raises(ValueError, match="is at least 1"):
        writer(prompt_batch=0)
    assert writer()([]) == []


def test_dry_run_and_example(tmp_path):
    made = writer()
    assert "by 2 agents, whose KL is" in made.dry_run()
    assert made.divergence(["2 + 2"]) > 0
    assert writer(1).divergence(["2 + 2"]) == 0
    facts = made.process_file(made.write_example(tmp_path / "a"), tmp_path / "b.jsonl")
    assert facts["prompts"] == 2


def test_writing_leaves_training_as_it_was(tmp_path):
    made = byte_task(2)
    trainer(tmp_path, max_steps=1).fit(made, loader([texts()]))
    made.inference()(PROMPTS[:1])
    assert made.crowd.agents.training and not made.crowd.backbone.training
