"""Texts from files and from code: boundaries, errors, cache, batches."""

import json
import pickle
from itertools import chain

import numpy as np
import pytest
import torch

from zoo.ci_llm.data.arithmetic import Arithmetic
from zoo.ci_llm.data.buckets import padding_share
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.text_data import Template, read_examples, split_files
from zoo.ci_llm.data.tokenizers import BpeTokenizer, ByteTokenizer
from zoo.ci_llm.data.tokens import join_rows, tokenise_files
from zoo.ci_llm.nets.backbone import packed

BYTES = ByteTokenizer()
FIELDS = ("question", "answer")


def write(path, pairs):
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs))
    return path


def texts(count):
    return [(f"What is {i}" + " of it" * (i % 7) + "?", f"It is {i}\n#### {i}") for i in range(count)]


def made(data):
    data.prepare_data()
    data.setup("fit")
    return data


KEYS = {"input_ids", "attention_mask", "labels", "label_positions"}


def test_boundary_eos_and_labels():
    data = made(TextData(BYTES, batch_size=4, max_length=200))
    batch = next(iter(data.train_dataloader()))
    assert set(batch) == KEYS
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    for ids, mask, labels in zip(*(batch[key] for key in ("input_ids", "attention_mask", "labels")), strict=True):
        ids, labels = ids[mask == 1], labels[mask == 1]
        learnt = labels != -100
        prompt, answer = BYTES.decode(ids[~learnt]), BYTES.decode(ids[learnt])
        assert ids[0] == 1 and ids[-1] == 2 == labels[-1]
        assert prompt.startswith("Question: ") and prompt.endswith("\nAnswer:")
        assert answer.startswith(" ") and "\n#### " in answer
        assert torch.equal(labels[learnt], ids[learnt])
        assert (learnt.long().diff() >= 0).all()
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_splits_of_the_embedded_corpus_share_no_sum():
    corpus = Arithmetic(train_items=600, val_items=100, test_items=100, largest=20)
    sums = [{each.answer for each in corpus.problems(split)} for split in ("train", "val", "test")]
    assert not (sums[0] & sums[1] or sums[0] & sums[2] or sums[1] & sums[2])
    assert corpus.problems("train") == Arithmetic(600, 100, 100).problems("train") != corpus.problems("test")
    for question, answer in corpus.problems("train"):
        left, _, right = answer.partition("\n#### ")
        assert eval(left.partition(" = ")[0]) == int(right) >= 0
        assert "{" not in question
    data = made(TextData(BYTES))
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (256, 32, 32)


def test_too_long_is_cut_or_dropped(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path / "train.jsonl", [("ab", "c" * n) for n in (1, 5, 9)] * 10)
    options = {"template": "{prompt}", "answer_template": "{answer}", "max_length": 8, "val_items": 2}
    data = made(TextData(BYTES, str(path), cache=None, batch_size=1, **options))
    row = data.train_set[int(np.argmax(data.lengths))]
    assert len(row["ids"]) == 8 and row["ids"][-1] != BYTES.eos_id and sorted(set(data.lengths)) == [5, 8]
    assert "20 of 30 examples are longer than data.init_args.max_length (8 tokens): the ends of" in caplog.text
    data = made(TextData(BYTES, str(path), cache=None, too_long="drop", **options))
    assert set(data.lengths.tolist()) == {5} and len(data.train_set) == 8


def test_a_prompt_longer_than_the_context(tmp_path):
    path = write(tmp_path / "train.jsonl", [*texts(5), ("x" * 50, "y")])
    with pytest.raises(ValueError, match=r"train.jsonl, line 6: its prompt has \d+ tokens.*context of 48"):
        made(TextData(BYTES, str(path), cache=None, max_length=48, template="{prompt}", val_items=1))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "a", "answer": " "}', r"train.jsonl, line 2: 'answer' is empty"),
        ('{"question": "", "answer": "b"}', r"train.jsonl, line 2: 'question' is empty"),
        ('{"question": "a"}', r"line 2: no text 'answer' \(found question\)"),
        ('{"question": "a", "answer": 3}', r"line 2: no text 'answer'"),
        ('["a"]', r"line 2: no text 'question' \(found list\)"),
        ('{"question": ', r"train.jsonl, line 2: not JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(ValueError, match=said):
        read_examples([path], *FIELDS)


def test_mark_and_separators_are_no_lines(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes('\ufeff{"question": "a\u2028b\u0085c", "answer": "d"}\r\n'.encode())
    (example,) = read_examples([path], *FIELDS)
    assert example.prompt == "a\u2028b\u0085c"
    path.write_bytes('{"question": "a", "answer": "b"}\n{"question": "caf\u00e9"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.jsonl:2: .*UTF-8"):
        read_examples([path], *FIELDS)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_tables(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    table = pa.table({"p": ["a", "b"], "q": ["c", "d"], "other": [1, 2]})
    path = tmp_path / ("train-00000-of-00001.parquet" if kind == "parquet" else "train.arrow")
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with (ipc.new_file if kind == "file" else ipc.new_stream)(str(path), table.schema) as sink:
            sink.write_table(table)
    files = split_files(tmp_path, "train")
    assert [(e.prompt, e.answer, e.line) for e in read_examples(files, "p", "q")] == [("a", "c", 1), ("b", "d", 2)]
    with pytest.raises(ValueError, match="its columns are p, q, other; expected question, answer"):
        read_examples(files, *FIELDS)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="no readable"):
        read_examples(files, "p", "q")


def test_files_of_splits(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no train\.jsonl"):
        split_files(tmp_path, "train")
    for name in ("train.jsonl", "validation-2.jsonl", "validation-1.jsonl", "train.txt"):
        write(tmp_path / name, texts(2))
    (tmp_path / "test").mkdir()
    write(tmp_path / "test" / "state.json", [])
    write(tmp_path / "test" / "data-0.jsonl", texts(3))
    found = {split: [path.name for path in split_files(tmp_path, split)] for split in ("train", "val", "test")}
    assert found["train"] == ["train.jsonl"] and found["test"] == ["data-0.jsonl"]
    assert found["val"] == ["validation-1.jsonl", "validation-2.jsonl"]
    assert split_files(tmp_path / "train.jsonl", "test") == []
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        split_files(tmp_path / "none", "train")


def test_cache(tmp_path, monkeypatch):
    path = write(tmp_path / "train.jsonl", texts(9))
    caches = tmp_path / "caches"

    def tokens(tokenizer=BYTES, template=None):
        return tokenise_files([path], FIELDS, tokenizer, template or Template(), caches)

    first = tokens()
    assert isinstance(first.ids, np.memmap) and len(list(caches.iterdir())) == 3
    monkeypatch.setattr("zoo.ci_llm.data.tokens.read_examples", lambda *_: pytest.fail("tokenised again"))
    again = tokens()
    assert np.array_equal(first.ids, again.ids) and np.array_equal(first.items, again.items)
    copied = pickle.loads(pickle.dumps(again))
    assert isinstance(copied.ids, np.memmap) and np.array_equal(copied.ids, first.ids)
    monkeypatch.undo()
    tokens(template=Template("{prompt}"))
    tokens(BpeTokenizer(vocab_size=300))
    assert len(list(caches.iterdir())) == 9
    write(path, texts(10))
    assert len(tokens()) == 10
    damaged = next(caches.glob("*.ids.npy"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    write(path, texts(9))
    assert len(tokens()) == 9


def test_validation_is_held_out_sorted_and_whole(tmp_path):
    write(tmp_path / "train.jsonl", texts(40))
    data = made(TextData(BYTES, str(tmp_path), cache=str(tmp_path / "caches"), val_items=11, batch_size=4))
    assert (len(data.train_set), len(data.val_set), data.test_set) == (29, 11, None)
    used = {
        tuple(row["ids"].tolist())
        for part in (data.train_set, data.val_set)
        for row in map(part.__getitem__, range(len(part)))
    }
    assert len(used) == 40
    lengths = [len(data.val_set[i]["ids"]) for i in range(11)]
    assert lengths == sorted(lengths, reverse=True)
    assert [len(batch["labels"]) for batch in data.val_dataloader()] == [4, 4, 3]
    with pytest.raises(ValueError, match=r"val_items \(40\)"):
        made(TextData(BYTES, str(tmp_path), cache=None, val_items=40))
    assert [example.line for example in data.examples("train")] == list(range(1, 41))
    with pytest.raises(ValueError, match="no files of the split test"):
        data.examples("test")


def test_packed_batches():
    data = made(TextData(BYTES, batch_size=3, max_length=400, packing=True))
    whole = made(TextData(BYTES, batch_size=3, max_length=400))
    assert data.lengths.sum() == whole.lengths.sum() and len(data.train_set) * 3 < len(whole.train_set)
    batch = next(iter(data.train_dataloader()))
    _, positions = packed(batch["segment_ids"])
    for row in range(3):
        mask, segments, where = batch["attention_mask"][row], batch["segment_ids"][row], positions[row]
        assert torch.equal(mask, (segments > 0).long())
        starts = torch.nonzero((where == 0) & (mask == 1))[:, 0]
        assert len(starts) == segments.max() > 1
        assert (batch["input_ids"][row][starts] == 1).all() and (batch["labels"][row][starts] == -100).all()
        assert torch.equal(segments[starts], torch.arange(1, len(starts) + 1))
    assert (data.val_dataloader().collate_fn([data.val_set[0]])).keys() == KEYS


def test_agents_with_texts_of_their_own():
    data = made(TextData(BYTES, batch_size=4, agents=3, agent_data="shuffled"))
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape[:2] == (3, 4) and batch["labels"].shape == batch["input_ids"].shape
    assert not torch.equal(batch["input_ids"][0], batch["input_ids"][1])
    shared = made(TextData(BYTES, batch_size=4, agents=3))
    assert next(iter(shared.train_dataloader()))["input_ids"].dim() == 2


def test_token_budget_and_resume():
    data = made(TextData(BYTES, token_budget=1500, agents=2, seed=3))
    keys = list(data.train_batches(0, 1))
    sizes = [next(iter([join_rows([data.train_set[key] for key in some], 0)["input_ids"].numel()])) for some in keys]
    assert max(sizes) * 2 <= 1500 and min(sizes) * 2 > 1000
    again = data.train_batches(0, 1)
    again.resume_at(0, 4)
    assert list(again) == keys[4:]
    assert [len(list(data.train_batches(rank, 2))) for rank in range(2)] == [len(data.train_batches(0, 2))] * 2


def test_workers_give_the_same(tmp_path):
    write(tmp_path / "train.jsonl", texts(20))
    batches = []
    for workers in (0, 1):
        data = TextData(BYTES, str(tmp_path), cache=str(tmp_path / "c"), val_items=4, batch_size=4, num_workers=workers)
        batches.append(list(made(data).train_dataloader()))
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(*batches, strict=True))


def test_what_cannot_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing at"):
        TextData(BYTES, str(tmp_path / "none"))
    assert TextData(BYTES, str(tmp_path / "none"), embedded_if_missing=True).root is None
    with pytest.raises(ValueError, match="batch_size"):
        TextData(BYTES, batch_size=0)
    with pytest.raises(ValueError, match="least_rows"):
        TextData(BYTES, batch_size=1, least_rows=2)
    with pytest.raises(ValueError, match="packing puts several texts into a row, so agent_data"):
        TextData(BYTES, packing=True, agents=2, agent_data="bootstrap")
    with pytest.raises(ValueError, match=r"must hold \{prompt\}"):
        TextData(BYTES, template="nothing")
    with pytest.raises(ValueError, match="operations"):
        Arithmetic(operations=["divide"])


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return str(tmp_path_factory.mktemp("caches"))


@pytest.mark.shared
@pytest.mark.parametrize("options", [{}, {"token_budget": 8192}, {"agents": 4, "agent_data": "shuffled"}])
def test_little_padding_on_gsm8k(shared, caches, options):
    data = made(TextData(BYTES, str(shared / "data/gsm8k"), max_length=2048, cache=caches, **options))
    batches = [[index for _, index in keys] for keys in data.train_batches(0, 1)]
    assert padding_share(data.lengths, batches) <= 0.1
    assert len(set(chain(*batches))) >= 0.99 * len(data.train_set)
    in_order = np.arange(len(data.lengths) // 8 * 8).reshape(-1, 8)
    assert padding_share(data.lengths, in_order) > 0.25


@pytest.mark.shared
def test_packing_gsm8k(shared, caches):
    data = made(TextData(BYTES, str(shared / "data/gsm8k"), max_length=2048, cache=caches, packing=True))
    assert data.lengths.sum() / (2048 * len(data.train_set)) > 0.97
