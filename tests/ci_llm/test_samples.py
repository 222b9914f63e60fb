"""The table of a validation: questions and answers, which are those of the inference."""

import csv
from pathlib import Path

import torch

from tests.ci_llm.crowd_parts import byte_crowd
from tests.ci_llm.task_parts import task, trainer
from zoo.ci_llm import Arithmetic, ByteTokenizer, TextData
from zoo.ci_llm.data.text_files import TextFormat
from zoo.ci_llm.validation_texts import to_one_line
from zoo.training.callbacks.samples import Samples

TEMPLATE = "Q: {prompt} A:"


def test_answers_are_those_of_the_inference(tmp_path: Path) -> None:
    corpus, text_format = Arithmetic(train_items=8, val_items=6, test_items=2), TextFormat(template=TEMPLATE)
    data = TextData(ByteTokenizer(), text_format=text_format, max_length=128, batch_size=4, corpus=corpus)
    settings = {"tokenizer": ByteTokenizer(), "template": TEMPLATE, "max_new_tokens": 6}
    made = task(byte_crowd(2, 256), **settings)
    torch.manual_seed(0)
    trainer(tmp_path, callbacks=[Samples(items=3)], max_steps=2, val_check_interval=2).fit(made, datamodule=data)
    table = tmp_path / "media" / "step_00000002" / "val_answers.csv"
    with table.open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    questions = [row[0] for row in rows]
    answers = {question: to_one_line(answer) for question, answer in corpus.problems("val")}
    assert len(questions) == 3 and [row[-1] for row in rows] == [answers[question] for question in questions]
    generator = made.inference()
    assert [row[heads.index("crowd")] for row in rows] == [to_one_line(text) for text in generator(questions)]
    for number in range(2):
        with made.crowd.select_agents(number):
            assert [row[1 + number] for row in rows] == [to_one_line(text) for text in generator(questions)]
