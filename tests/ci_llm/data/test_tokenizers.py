"""Tokenizers: bytes, byte pairs learnt here, and those read from a folder."""

import pickle

import pytest

from zoo.ci_llm.data.tokenizers import BpeTokenizer, ByteTokenizer, PretrainedTokenizer

TEXT = "Ünï: 12 + 30 = 42\n#### 42"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BpeTokenizer(vocab_size=300)])
def test_text_comes_back(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert max(ids) < tokenizer.vocab_size and min(ids) >= 3
    assert (tokenizer.pad_id, tokenizer.prefix, tokenizer.eos_id) == (0, [1], 2)
    assert tokenizer.decode([1, *ids, 2, 0]) == TEXT


def test_bytes_are_single():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 259
    assert len(tokenizer.encode(TEXT)) == len(TEXT.encode())
    assert tokenizer.encode_all([TEXT, "a"]) == [tokenizer.encode(TEXT), tokenizer.encode("a")]
    assert tokenizer.encode_all([]) == []


def test_byte_pairs_are_learnt_and_the_same_each_time():
    first, second = BpeTokenizer(vocab_size=320), BpeTokenizer(vocab_size=320)
    assert first.vocab_size == 320 and first.fingerprint == second.fingerprint
    assert first.fingerprint != BpeTokenizer(vocab_size=300).fingerprint
    text = "How many apples are left?"
    assert len(first.encode(text)) < len(text) / 2
    assert len(first.encode("12345")) == 5


def test_byte_pairs_of_a_file(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"q": "zzzz zzzz", "a": "zzzz"}\n' * 20)
    tokenizer = BpeTokenizer(vocab_size=262, root=str(tmp_path), prompt_field="q", answer_field="a")
    assert len(tokenizer.encode("zzzz")) == 1


def test_saved_and_read(tmp_path):
    made = BpeTokenizer(vocab_size=300)
    made.save(tmp_path)
    read = PretrainedTokenizer(str(tmp_path))
    assert read.encode(TEXT) == made.encode(TEXT)
    assert (read.prefix, read.eos_id, read.pad_id) == (made.prefix, made.eos_id, made.pad_id)
    assert read.decode(read.encode(TEXT)) == TEXT


def test_pickles_without_its_backend():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(TEXT)
    data = pickle.dumps(tokenizer)
    assert len(data) < 1000
    assert pickle.loads(data).encode(TEXT) == ids


def test_what_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="at least 259"):
        BpeTokenizer(vocab_size=100)
    with pytest.raises(FileNotFoundError, match="no tokenizer in"):
        PretrainedTokenizer(str(tmp_path)).encode("a")
