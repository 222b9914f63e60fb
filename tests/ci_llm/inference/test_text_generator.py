"""Prompts in, texts out: batches, votes, files, exports."""

import json
import shutil

import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, crowd
from tests.ci_llm.task_parts import byte_task, task
from zoo.ci_llm import BpeTokenizer, ByteTokenizer, LearningBackbone, Mean, Sampling, TextGenerator
from zoo.ci_llm.evaluation.evaluate import evaluate
from zoo.ci_llm.pretrain_task import save_backbone
from zoo.cli.main import main
from zoo.runs.load import load

PROMPTS = ["2 + 3", "Ada has 12 apples. How many?", "x", "nine minus four"]


def text_generator(count: int = 2, **arguments) -> TextGenerator:
    return byte_task(count, **arguments).inference().eval()


def test_answers_do_not_depend_on_the_batch():
    sampled = {"sampling": Sampling(temperature=2.0)}
    alone, together = (text_generator(prompt_batch=size, **sampled)(PROMPTS) for size in (1, 3))
    assert alone == together != text_generator(answer_seed=1, **sampled)(PROMPTS)


def test_file_of_prompts(tmp_path):
    made = text_generator(prompt_field="task")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"2 + 3"\n\n"' + "x" * 60 + '"\n{"question": "x", "id": 7}\n{"task": "x", "question": "2 + 3"}\n')
    facts = made.process_file(source, target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    answers = made(["2 + 3", "x", "x"])
    assert rows[0] == {"prompt": "2 + 3", "text": answers[0]}
    assert "do not fit into the backbone's context of 64" in rows[1]["error"] and "text" not in rows[1]
    assert rows[2] == {"question": "x", "id": 7, "text": answers[1]}
    assert facts.pop("first_error").startswith("line 3: a prompt of 61 tokens")
    assert rows[3] == {"task": "x", "question": "2 + 3", "text": answers[2]}
    assert facts == {"prompts": 4, "failed": 1, "characters": sum(map(len, answers))}
    shorter = text_generator(prompt_field="task", max_new_tokens=1)  # the prompt that failed has an `error`, and fits
    assert shorter.process_file(target, tmp_path / "again.jsonl")["failed"] == 0
    again = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [row["text"] for row in again] == shorter(["2 + 3", "x" * 60, "x", "x"])
    sampled, texts = text_generator(prompt_field="task", sampling=Sampling(temperature=2.0)), []
    for first in ("1 + 1", "x" * 60):  # the samples of a line do not depend on whether another one fits
        source.write_text(f'"{first}"\n"2 + 3"\n')
        sampled.process_file(source, target)
        texts.append(json.loads(target.read_text().splitlines()[1])["text"])
    assert texts[0] == texts[1]


def test_a_prompt_called_text_stays(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "2 + 3", "id": "\\ud83d"}\n')  # half a character
    made = text_generator(prompt_field="text")
    made.process_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    (answer,) = made(["2 + 3"])
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"text": "2 + 3", "id": "\ud83d", "answer": answer}


def test_likelihoods_are_those_of_the_generated_tokens(tmp_path):
    made = text_generator(1, max_new_tokens=2, sampling=Sampling(temperature=1.5))
    prompt = made.encode("2 + 3")
    for made.answer_seed in range(300):
        ((text,),) = made.generate_texts([prompt], Mean())
        if text.isascii() and len(text) == 2 and text.strip() not in ("", text):
            break
    values = {"question": "2 + 3", "max_new_tokens": 2, "temperature": 1.5, "seed": made.answer_seed}
    answer, *_, table = made.answer(values, tmp_path, lambda *progress: None)
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *made.tokenizer.encode(text)]])
        log_probs = made.crowd(ids, torch.ones_like(ids))[0, 0, -3:-1].log_softmax(-1)
    assert answer.data == text.strip() != text
    assert table.data["rows"][0][1] == pytest.approx(float(log_probs.gather(1, ids[0, -2:, None]).mean()), abs=1e-3)


def test_answers_on_a_page_stay_within_the_context(tmp_path):
    """Bytes that are no text are three tokens each when they are encoded again; GPT-2 has a table of positions."""
    config = {**CONFIGS["gpt2"], "vocab_size": 259}
    on_bytes = {"tokenizer": ByteTokenizer(), "template": "{prompt}", "max_new_tokens": 8}
    made = task(crowd("gpt2", 2, backbone={"config": config}), **on_bytes).inference().eval()
    values = {"question": "x" * 55, "max_new_tokens": 8, "temperature": 2.0, "seed": 0}
    outputs = made.answer(values, tmp_path, lambda *progress: None)
    assert any(len(made.tokenizer.encode(each.data)) > 8 for each in outputs if each.kind == "text")
    with pytest.raises(ValueError, match="do not fit into the backbone's context of 64"):
        made.answer({**values, "question": "x" * 60}, tmp_path, lambda *progress: None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}', "line 1: no field 'question'"),
        ("", "no prompts"),
        (json.dumps("x" * 60), "line 1: .* do not fit"),
    ],
)
def test_invalid_files_are_named_and_leave_nothing(content, message, tmp_path):
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        text_generator().process_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_run_and_its_export_need_no_other_folder(tmp_path, monkeypatch):
    """A learned tokenizer and a backbone of a folder; convert/test_convert.py has a tokenizer of a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"question": f"How much is {n} + 1?", "answer": f"{n + 1}"}) for n in range(40)]
    (tmp_path / "data/train.jsonl").write_text("\n".join(lines))
    backbone = LearningBackbone({**CONFIGS["llama"], "vocab_size": 300, "max_position_embeddings": 128})
    save_backbone(backbone, BpeTokenizer(300, root="data"), tmp_path / "backbone")
    learned = {"class_path": "zoo.ci_llm.BpeTokenizer", "init_args": {"vocab_size": 300, "root": "data"}}
    options = {
        "trainer.default_root_dir": "run", "trainer.max_steps": 2, "trainer.val_check_interval": 2,
        "model.init_args.crowd.init_args.backbone.init_args.source": "backbone",
        "data.init_args.root": "data", "data.init_args.val_items": 4, "data.init_args.cache": "null",
        "data.init_args.tokenizer": json.dumps(learned),
    }  # fmt: skip
    assert main(["fit", "ci_llm/smoke", *(f"--{key}={value}" for key, value in options.items())]) in (0, None)
    expected = load("run")(PROMPTS[:2])
    assert main(["export", "run", "exported"]) in (0, None)
    with pytest.raises(ValueError, match="give --questions"):
        evaluate(tmp_path / "exported", tmp_path / "evaluation")
    for folder in ("data", "backbone"):
        shutil.rmtree(folder)
    for path in ("run", "exported"):
        (tmp_path / path).rename(tmp_path / f"moved_{path}")
        assert load(tmp_path / f"moved_{path}")(PROMPTS[:2]) == expected
