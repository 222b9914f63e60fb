"""Tokenizers: that of a pretrained backbone, and two for backbones made here (bytes, and byte pairs learnt here)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from zoo.common.checks import check_at_least
from zoo.runs.pretrained_files import load_tokenizer

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = (PAD, BOS, EOS)  # numbers 0, 1 and 2


class Tokenizer:
    """Base of the tokenizers: text to numbers and back.

    A subclass defines `build`. Text of data is encoded without special tokens; `prefix` has those with which the
    tokenizer begins a text (a BOS, or nothing).
    """

    def build(self) -> Any:
        """Build transformers' tokenizer."""
        raise NotImplementedError(f"{type(self).__name__} defines no build()")

    @cached_property
    def backend(self) -> Any:
        """Transformers' tokenizer, built at the first use."""
        return self.build()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the backend behind: a process builds its own where it needs one."""
        return {key: value for key, value in vars(self).items() if key != "backend"}

    @property
    def vocab_size(self) -> int:
        """Numbers are below this one."""
        return len(self.backend)

    @cached_property
    def eos_id(self) -> int:
        """The number that ends an answer."""
        if self.backend.eos_token_id is None:
            raise ValueError(
                f"tokenizer {self!r} has no EOS token, with which every answer ends; set one in its folder"
            )
        return int(self.backend.eos_token_id)

    @cached_property
    def pad_id(self) -> int:
        """The number that fills rows; that of EOS where the tokenizer has none of its own (it is masked)."""
        own = self.backend.pad_token_id
        return self.eos_id if own is None else int(own)

    @cached_property
    def prefix(self) -> list[int]:
        """The numbers with which the tokenizer begins a text."""
        whole, plain = self.backend("0")["input_ids"], self.encode("0")
        starts = range(len(whole) - len(plain) + 1)
        return list(whole[: next((i for i in starts if whole[i : i + len(plain)] == plain), 0)])

    def encode(self, text: str) -> list[int]:
        """Numbers of a text, without special tokens."""
        return list(self.backend(text, add_special_tokens=False)["input_ids"])

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Numbers of many texts, without special tokens."""
        if not texts:
            return []
        found = self.backend(list(texts), add_special_tokens=False, return_attention_mask=False)
        return [list(ids) for ids in found["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of numbers, without special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: Path) -> None:
        """Write what transformers' `AutoTokenizer.from_pretrained(folder)` reads."""
        self.backend.save_pretrained(str(folder))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of what it does to text."""
        fast = getattr(self.backend, "backend_tokenizer", None)
        rules = fast.to_str() if fast is not None else json.dumps(self.backend.get_vocab(), sort_keys=True)
        return hashlib.sha256(json.dumps([rules, self.prefix, self.eos_id]).encode()).hexdigest()


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a backbone.

    Args:
        source: hub id, or a folder with its files (the backbone's, or the `tokenizer/` of a checkpoint).
        revision: commit of the hub repository.
    """

    def __init__(self, source: str, revision: str | None = None) -> None:
        self.source = source
        self.revision = revision

    def __repr__(self) -> str:
        return self.source

    def build(self) -> Any:
        """Read it."""
        try:
            return load_tokenizer(self.source, self.revision)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise FileNotFoundError(
                f"no tokenizer in {self.source} ({reason}); name the folder or hub id of one in "
                "data.init_args.tokenizer, or use ByteTokenizer for a backbone made here"
            ) from error


class ByteTokenizer(Tokenizer):
    """One number per byte of UTF-8, and pad 0, BOS 1, EOS 2: 259 numbers."""

    def build(self) -> Any:
        """Build it: byte pairs without any merge."""
        from tokenizers import models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {token: number for number, token in enumerate((*SPECIAL, *letters))}
        return _wrapped(_bytewise(models.BPE(vocab=vocab, merges=[]), split=False))


class BpeTokenizer(Tokenizer):
    """Byte pairs learnt from a corpus; digits stay single. Pad is 0, BOS 1, EOS 2.

    It is learnt anew where it is built, with the same result. To have it without its corpus, `save` it and read the
    folder with `PretrainedTokenizer`.

    Args:
        vocab_size: numbers wanted, at least 259; fewer where the corpus has not so many pairs.
        root: file or folder of a corpus, as that of `TextData`; null for the embedded corpus.
        prompt_field: where a record of the corpus holds the prompt.
        answer_field: where it holds the answer.
    """

    def __init__(
        self,
        vocab_size: int = 512,
        root: str | None = None,
        prompt_field: str = "question",
        answer_field: str = "answer",
    ) -> None:
        check_at_least(256 + len(SPECIAL), vocab_size=vocab_size)  # all bytes
        self.wanted = vocab_size
        self.root = root
        self.fields = (prompt_field, answer_field)

    def build(self) -> Any:
        """Learn it."""
        from tokenizers import models, pre_tokenizers, trainers

        from zoo.ci_llm.data.arithmetic import Arithmetic
        from zoo.ci_llm.data.text_data import read_examples, split_files

        if self.root is None:
            pairs: Iterable[tuple[str, str]] = Arithmetic(train_items=1000).problems("train")
        else:
            pairs = (row[:2] for row in read_examples(split_files(Path(self.root), "train"), *self.fields))
        inner = _bytewise(models.BPE(), split=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.wanted,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        inner.train_from_iterator((f"{prompt} {answer}" for prompt, answer in pairs), trainer)
        return _wrapped(inner)


def _bytewise(model: Any, split: bool) -> Any:
    """A tokenizer of bytes around a model; `split` parts words and digits before pairs are looked for."""
    import tokenizers
    from tokenizers import decoders, pre_tokenizers, processors

    inner = tokenizers.Tokenizer(model)
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    digits = pre_tokenizers.Digits(individual_digits=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, by_byte]) if split else by_byte
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL.index(BOS))])
    return inner


def _wrapped(inner: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, eos_token=EOS, pad_token=PAD)
