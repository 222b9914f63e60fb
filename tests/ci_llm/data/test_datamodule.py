"""Texts from files and from code: boundaries, errors, cache, batches."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from zoo.ci_llm import Arithmetic, BpeTokenizer, ByteTokenizer, TextData
from zoo.ci_llm.data.text_files import TextFormat, read_examples, split_files, text_fields
from zoo.ci_llm.data.tokens import tokenise_files

BYTES = ByteTokenizer()
FIELDS = ("question", "answer")
KEYS = {"input_ids", "attention_mask", "labels", "label_positions"}


def write(path, pairs):
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs))
    return path


def texts(count):
    return [(f"What is {i}" + " of it" * (i % 7) + "?", f"It is {i}\n#### {i}") for i in range(count)]


def prepare(data):
    data.prepare_data()
    data.setup("fit")
    return data


def test_boundary_eos_and_labels():
    data = prepare(TextData(BYTES, batch_size=4, max_length=200))
    batch = next(iter(data.train_dataloader()))
    assert set(batch) == KEYS
    for ids, mask, labels in zip(*(batch[key] for key in ("input_ids", "attention_mask", "labels")), strict=True):
        ids, labels = ids[mask == 1], labels[mask == 1]
        labelled = labels != -100
        prompt, answer = BYTES.decode(ids[~labelled]), BYTES.decode(ids[labelled])
        assert ids[0] == 1 and ids[-1] == 2
        assert prompt.startswith("Question: ") and prompt.endswith("\nAnswer:") and "\n#### " in answer
        assert torch.equal(labels[labelled], ids[labelled]) and (labelled.long().diff() >= 0).all()
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_splits_of_the_embedded_corpus_share_no_sum():
    corpus = Arithmetic(train_items=600, val_items=100, test_items=100, largest=20)
    sums = [{answer for _, answer in corpus.problems(split)} for split in ("train", "val", "test")]
    assert not (sums[0] & sums[1] or sums[0] & sums[2] or sums[1] & sums[2])
    assert corpus.problems("train") == Arithmetic(600, 100, 100).problems("train") != corpus.problems("test")
    for question, answer in corpus.problems("train"):
        left, _, right = answer.partition("\n#### ")
        assert eval(left.partition(" = ")[0]) == int(right) >= 0 and "{" not in question


def test_too_long_is_cut_or_dropped(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path / "train.jsonl", [("a" + c, "c" * n) for n in (1, 5, 9) for c in "bcdefghijk"])
    templates = {"template": "{prompt}", "answer_template": "{answer}"}
    options = {"max_length": 8, "val_items": 2, "cache": None}
    data = prepare(TextData(BYTES, str(path), TextFormat(**templates), batch_size=1, **options))
    row = data.train_set[int(np.argmax(data.lengths))]
    assert len(row["ids"]) == 8 and row["ids"][-1] != BYTES.eos_id and sorted(set(data.lengths)) == [5, 8]
    assert "20 of 30 examples are longer than data.init_args.max_length (8 tokens): the ends of" in caplog.text
    data = prepare(TextData(BYTES, str(path), TextFormat(**templates, too_long="drop"), **options))
    assert set(data.lengths.tolist()) == {5} and len(data.train_set) == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "answer": " "}', "empty"),
        ('{"question": "a"}', "no field 'answer'"),
        (r'{"question": "half \ud83d", "answer": "b"}', "half of a character"),
        ('{"question": ', "not JSON"),
    ],
)
def test_invalid_lines_are_named(tmp_path, line, message):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(ValueError, match="train.jsonl, line 2: .*" + message):
        read_examples([path], *FIELDS)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_tables(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    columns = {"p": ["a", "b"], "q": pa.array(["c", "d"]).dictionary_encode(), "other": [1, 2], "tags": [["a"], ["b"]]}
    table, path = pa.table(columns), tmp_path / f"train-00000-of-00001.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with (ipc.new_file if kind == "file" else ipc.new_stream)(str(path), table.schema) as sink:
            sink.write_table(table)
    assert text_fields(path) == ["p", "q"]
    files = split_files(tmp_path, "train")
    assert [(e.prompt, e.answer, e.line) for e in read_examples(files, "p", "q")] == [("a", "c", 1), ("b", "d", 2)]
    with pytest.raises(ValueError, match="its columns are p, q, other, tags"):
        read_examples(files, *FIELDS)
    content = path.read_bytes()
    for damaged in (b"nothing of the kind", *([content[:4] + bytes(16) + content[20:]] if kind == "parquet" else [])):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{path.name}: no readable"):
            read_examples(files, "p", "q")


def test_files_of_splits(tmp_path):
    for name in ("train.jsonl", "validation-2.jsonl", "validation-1.jsonl", "train.txt"):
        write(tmp_path / name, texts(2))
    (tmp_path / "test").mkdir()
    write(tmp_path / "test" / "state.json", [])
    write(tmp_path / "test" / "data-0.jsonl", texts(3))
    names = [[path.name for path in split_files(tmp_path, split)] for split in ("train", "val", "test")]
    assert names == [["train.jsonl"], ["validation-1.jsonl", "validation-2.jsonl"], ["data-0.jsonl"]]
    assert split_files(tmp_path / "train.jsonl", "test") == []


def test_cache(tmp_path, monkeypatch):
    path, cache = write(tmp_path / "train.jsonl", texts(9)), tmp_path / "cache"

    def tokens(tokenizer=BYTES, text_format=None):
        return tokenise_files([path], tokenizer, text_format or TextFormat(), cache)

    first = tokens()
    assert isinstance(first.ids, np.memmap) and len(list(cache.iterdir())) == 2
    monkeypatch.setattr("zoo.ci_llm.data.tokens.read_examples", lambda *_: pytest.fail("tokenised again"))
    again = tokens()
    assert np.array_equal(first.ids, again.ids) and np.array_equal(first.items, again.items)
    monkeypatch.undo()
    tokens(text_format=TextFormat(template="{prompt}"))
    tokens(BpeTokenizer(vocab_size=300))
    assert len(list(cache.iterdir())) == 6
    write(path, texts(10))
    assert len(tokens()) == 10
    damaged = next(cache.glob("*.ids.npy"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    write(path, texts(9))
    assert len(tokens()) == 9


def test_validation_is_held_out_and_sorted(tmp_path):
    write(tmp_path / "train.jsonl", texts(40))
    data = prepare(TextData(BYTES, str(tmp_path), cache=str(tmp_path / "caches"), val_items=11, batch_size=4))
    assert (len(data.train_set), len(data.val_set), data.test_set) == (29, 11, None)
    rows = {tuple(part[i]["ids"].tolist()) for part in (data.train_set, data.val_set) for i in range(len(part))}
    assert len(rows) == 40
    lengths = [len(data.val_set[i]["ids"]) for i in range(11)]
    assert lengths == sorted(lengths, reverse=True)
    assert [len(batch["labels"]) for batch in data.val_dataloader()] == [4, 4, 3]
    assert len(set(data.validation_examples())) == 11 and set(data.validation_examples()) < set(data.examples("train"))


def test_equal_texts_are_held_out_together(tmp_path):
    def rows(pairs):
        path = write(tmp_path / "train.jsonl", pairs)
        data = prepare(TextData(BYTES, str(path), cache=None, val_items=6, batch_size=4, max_length=99))
        return [[tuple(part[i]["ids"].tolist()) for i in range(len(part))] for part in (data.train_set, data.val_set)]

    distinct, cut = texts(30), [("What is 3?", "It is " + "long " * 20 + end) for end in "ab"]
    train, held_out = rows([*distinct, *distinct[:20], *cut, *cut])
    assert not {*train} & {*held_out} and len(train) + len(held_out) == 54 and 6 <= len(held_out) <= 9
    with pytest.raises(ValueError, match="6 held-out texts and their copies are all 40 texts"):
        rows(distinct[:1] * 40)


def test_too_few_texts_and_too_long_ones_are_refused(tmp_path):
    write(tmp_path / "train.jsonl", texts(40))
    half = write(tmp_path / "half.jsonl", [("a", "b" * (90 if i % 2 else 1)) for i in range(80)])
    for root, text_format, max_length, message in (
        (half, TextFormat(too_long="drop"), 80, r"64 of 40 texts would be held out: --data\.val_items 4"),
        (tmp_path, TextFormat(), 18, r"line \d+: .* --data.max_length"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(TextData(BYTES, str(root), text_format, max_length, cache=None))


def test_all_misfits_are_in_one_message_with_the_options_that_mend_them(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps({"id": i, "instruction": "Say it " * 12, "output": str(i)}) for i in range(6)]
    path.write_text("\n".join(lines))
    data = TextData(BYTES, str(path), cache=None, max_length=300, batch_size=8)
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(context_tokens=90), world_size=1, global_rank=0)
    with pytest.raises(ValueError, match="--data") as error:
        prepare(data)
    options = re.findall(r"--data\.(\S+ \S+?)(?:;|\s|$)", str(error.value))
    assert options == [
        "text_format.prompt_field instruction", "text_format.answer_field output", "max_length 90",
        "text_format.too_long drop", "val_items 1", "batch_size 5",
    ]  # fmt: skip


def test_every_split_with_other_fields_is_named(tmp_path):
    other = json.dumps({"question": "b", "reply": "c"}) + "\n"
    (tmp_path / "train.jsonl").write_text(other * 80)
    (tmp_path / "test.jsonl").write_text(other)
    with pytest.raises(ValueError, match=r"train\.jsonl has no field .*; .*test\.jsonl has no field"):
        prepare(TextData(BYTES, str(tmp_path), cache=None))


@pytest.mark.parametrize("names", [("instruction", "input", "output"), ("id", "text")])
def test_fields_are_not_guessed(tmp_path, names):
    (tmp_path / "train.jsonl").write_text(json.dumps(dict.fromkeys(names, "a")) + "\n")
    with pytest.raises(ValueError, match=", ".join(names)) as error:
        prepare(TextData(BYTES, str(tmp_path), cache=None))
    assert "--data.text_format" not in str(error.value)
