"""Tokenizers: bytes, byte pairs, and those read from a folder."""

import pickle

import pytest

from zoo.ci_llm.data.tokenizers import BpeTokenizer, ByteTokenizer, PretrainedTokenizer

TEXT = "Ünï: 12 + 30 = 42\n#### 42"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BpeTokenizer(vocab_size=300)])
def test_text_is_decoded(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode([1, *ids, 2, 0]) == tokenizer.decode(ids) == TEXT
    assert max(ids) < tokenizer.vocab_size and min(ids) >= 3
    assert (tokenizer.pad_id, tokenizer.prefix, tokenizer.eos_id) == (0, [1], 2)
    assert tokenizer.encode_all([TEXT, "a"]) == [ids, tokenizer.encode("a")]


def test_byte_pairs_are_reproducible(tmp_path):
    first, second = BpeTokenizer(vocab_size=320), BpeTokenizer(vocab_size=320)
    assert first.vocab_size == 320 and first.fingerprint() == second.fingerprint()
    text = "How many apples are left?"
    assert len(ByteTokenizer().encode(text)) == len(text) > 2 * len(first.encode(text))
    assert len(first.encode("12345")) == 5
    (tmp_path / "train.jsonl").write_text('{"q": "zzzz zzzz", "a": "zzzz"}\n' * 20)
    tokenizer = BpeTokenizer(vocab_size=262, root=str(tmp_path), prompt_field="q", answer_field="a")
    assert len(tokenizer.encode("zzzz")) == 1


def test_saved_and_read(tmp_path):
    saved = BpeTokenizer(vocab_size=300)
    saved.save_source(tmp_path)
    for read in (PretrainedTokenizer(str(tmp_path)), BpeTokenizer(300, root="nowhere", source=str(tmp_path))):
        assert read.encode(TEXT) == saved.encode(TEXT)
        assert (read.prefix, read.eos_id, read.pad_id) == (saved.prefix, saved.eos_id, saved.pad_id)
        assert read.fingerprint() == saved.fingerprint() and read.is_frozen
        assert pickle.loads(pickle.dumps(read)).encode(TEXT) == read.encode(TEXT)
