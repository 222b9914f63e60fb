"""Tokenizers: that of a pretrained backbone, and two for backbones trained here (bytes, byte pairs)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.runs.frozen import FrozenModule
from zoo.runs.pretrained_files import load_tokenizer

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = (PAD, BOS, EOS)  # ids 0, 1 and 2


class Tokenizer(FrozenModule):
    """Base of the tokenizers: text to token ids and back. Runs and exports hold copies of local ones.

    A subclass defines `build`. Texts are encoded without special tokens; `prefix` holds those with which the tokenizer
    begins a text (a BOS, or nothing).

    Args:
        source: hub id, or a folder with its files (the backbone's, or the `tokenizer/` of a checkpoint).
        revision: commit of the hub repository.
    """

    def build(self) -> Any:
        """Build the tokenizer of transformers."""
        raise NotImplementedError(f"{type(self).__name__} defines no build()")

    @cached_property
    def backend(self) -> Any:
        """The tokenizer of transformers, built at the first use."""
        return self.build()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the backend: a process builds its own."""
        return {key: value for key, value in vars(self).items() if key != "backend"}

    def frozen_state(self) -> dict[str, Tensor]:
        """Nothing: a tokenizer has no weights."""
        return {}

    @property
    def is_frozen(self) -> bool:
        """Whether runs and exports need a copy, as its files are on this machine only."""
        return self.is_local

    def save_source(self, folder: Path) -> None:
        """Write the files that `AutoTokenizer.from_pretrained(folder)` of transformers reads."""
        self.backend.save_pretrained(str(folder))

    def fingerprint(self) -> str:
        """The sha256 of vocabulary, prefix and EOS."""
        facts = [sorted(self.backend.get_vocab().items()), self.prefix, self.eos_id]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.backend)

    def check_vocabulary(self, size: int) -> None:
        """Refuse a model whose vocabulary of `size` tokens lacks some of these; added ones may be beyond it."""
        used = max(self.backend.vocab_size, 1 + max(self.eos_id, self.pad_id, *self.prefix))
        if used > size:
            raise ValueError(
                f"the tokenizer has {used} tokens, the backbone's vocabulary {size}: set "
                "model.init_args.tokenizer to the backbone's own"
            )

    @cached_property
    def eos_id(self) -> int:
        """The id that ends an answer."""
        if self.backend.eos_token_id is None:
            raise ValueError(
                f"tokenizer {self!r} has no EOS token, with which every answer ends; set one in its folder"
            )
        return int(self.backend.eos_token_id)

    @cached_property
    def pad_id(self) -> int:
        """The id that fills rows; EOS where the tokenizer has no padding token (it is masked)."""
        pad = self.backend.pad_token_id
        return self.eos_id if pad is None else int(pad)

    @cached_property
    def prefix(self) -> list[int]:
        """The ids with which the tokenizer begins a text."""
        with_special, plain = self.backend("0")["input_ids"], self.encode("0")
        starts = range(len(with_special) - len(plain) + 1)
        return list(with_special[: next((i for i in starts if with_special[i : i + len(plain)] == plain), 0)])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        return list(self.backend(text, add_special_tokens=False)["input_ids"])

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, without special tokens."""
        if not texts:
            return []
        encoded = self.backend(list(texts), add_special_tokens=False, return_attention_mask=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a backbone.

    Args:
        source: hub id, or a folder with its files (the backbone's, or the `tokenizer/` of a checkpoint).
        revision: commit of the hub repository.
    """

    source: str

    def __init__(self, source: str, revision: str | None = None) -> None:
        super().__init__(source, revision)

    def __repr__(self) -> str:
        return self.source

    def build(self) -> Any:
        """Read it."""
        try:
            return _load(self)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise FileNotFoundError(
                f"no tokenizer in {self.source} ({reason}); name the folder or hub id of one in "
                "data.init_args.tokenizer, or use ByteTokenizer for a backbone trained here"
            ) from error


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8, and pad 0, BOS 1, EOS 2: 259 ids."""

    is_frozen = False

    def __init__(self) -> None:
        super().__init__()

    def build(self) -> Any:
        """Build byte pairs without any merge."""
        from tokenizers import models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {token: number for number, token in enumerate((*SPECIAL, *letters))}
        return _wrap(_byte_level(models.BPE(vocab=vocab, merges=[]), split=False))


class BpeTokenizer(Tokenizer):
    """Byte pairs learned from a corpus; digits stay single. Pad is 0, BOS 1, EOS 2.

    Args:
        vocab_size: number of ids, at least 259; fewer where the corpus has fewer pairs.
        root: file or folder of a corpus, as that of `TextData`; null for the embedded corpus.
        prompt_field: of a record of the corpus, holds the prompt.
        answer_field: of a record, holds the answer.
        source: a folder with the learned tokenizer, such as the copy in a run; the corpus is not read then.
        revision: unused; folders have none.
    """

    def __init__(
        self,
        vocab_size: int = 512,
        root: str | None = None,
        prompt_field: str = "question",
        answer_field: str = "answer",
        source: str | None = None,
        revision: str | None = None,
    ) -> None:
        check_at_least(256 + len(SPECIAL), vocab_size=vocab_size)  # all bytes
        super().__init__(source, revision)
        self.max_ids = vocab_size
        self.root = root
        self.fields = (prompt_field, answer_field)

    def build(self) -> Any:
        """Read or learn it."""
        from tokenizers import models, pre_tokenizers, trainers

        from zoo.ci_llm.data.arithmetic import Arithmetic
        from zoo.ci_llm.data.text_files import read_examples, split_files

        if self.copy_path is not None or self.source is not None:
            return _load(self)
        if self.root is None:
            pairs: Iterable[tuple[str, str]] = Arithmetic(train_items=1000).problems("train")
        else:
            pairs = (example[:2] for example in read_examples(split_files(Path(self.root), "train"), *self.fields))
        tokenizer = _byte_level(models.BPE(), split=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.max_ids,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator((f"{prompt} {answer}" for prompt, answer in pairs), trainer)
        return _wrap(tokenizer)


def _load(tokenizer: Tokenizer) -> Any:
    return load_tokenizer(str(tokenizer.copy_path or tokenizer.source), tokenizer.revision)


def _byte_level(model: Any, split: bool) -> Any:
    """A byte-level tokenizer around a model; `split` separates words and digits before pairs are merged."""
    import tokenizers
    from tokenizers import decoders, pre_tokenizers, processors

    tokenizer = tokenizers.Tokenizer(model)
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, by_byte]) if split else by_byte
    tokenizer.decoder = decoders.ByteLevel()
    special = [(BOS, SPECIAL.index(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=special)
    return tokenizer


def _wrap(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD)
