"""Tables of a validation: questions and answers, from the recipes and from unusual data."""

import csv
from pathlib import Path

import torch

from tests.ci_llm import task_parts
from tests.ci_llm.crowd_parts import byte_crowd
from tests.ci_llm.task_parts import trainer
from zoo.ci_llm import Arithmetic, ByteTokenizer, CrowdTask, TextData
from zoo.ci_llm.data.text_files import TextFormat
from zoo.ci_llm.validation_texts import to_one_line
from zoo.training.callbacks.samples import Samples

TEMPLATE = "Q: {prompt} A:"


def read_table(folder: Path, name: str = "val_answers", step: int = 2) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of a run."""
    with (folder / "media" / f"step_{step:08d}" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    return heads, rows


def data(val_items: int = 6) -> TextData:
    corpus = Arithmetic(train_items=8, val_items=val_items, test_items=2)
    text_format = TextFormat(template=TEMPLATE)
    return TextData(ByteTokenizer(), text_format=text_format, max_length=128, batch_size=4, corpus=corpus)


def task(count: int = 2, **arguments) -> CrowdTask:
    settings = {"tokenizer": ByteTokenizer(), "template": TEMPLATE, "max_new_tokens": 6, **arguments}
    return task_parts.task(byte_crowd(count, 256), **settings)


def fit(made: CrowdTask, folder: Path, samples: Samples, source: TextData | None = None) -> CrowdTask:
    torch.manual_seed(0)
    run = trainer(folder, callbacks=[samples], max_steps=2, val_check_interval=2)
    run.fit(made, datamodule=source or data())
    return made


def test_answers_are_those_of_the_inference(tmp_path: Path) -> None:
    made = fit(task(), tmp_path, Samples(items=3))
    heads, rows = read_table(tmp_path)
    questions = [row[0] for row in rows]
    answers = {question: to_one_line(answer) for question, answer in data().corpus.problems("val")}
    assert len(questions) == 3 and [row[-1] for row in rows] == [answers[question] for question in questions]
    generator = made.inference()
    assert [row[heads.index("crowd")] for row in rows] == [to_one_line(text) for text in generator(questions)]
    for number in range(2):
        with made.crowd.select_agents(number):
            assert [row[1 + number] for row in rows] == [to_one_line(text) for text in generator(questions)]
