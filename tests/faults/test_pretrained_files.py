"""Files beside a pretrained model: no value in them becomes an import, a download, a process or a path elsewhere."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations import hub_kernels

from tests.ci_llm.crowd_parts import CONFIGS as CAUSAL
from tests.flow.conditions import T5
from tests.miipher.parts import CONFIGS as AUDIO
from zoo.audio.evaluation.similarity import SpeakerSimilarity
from zoo.ci_llm.convert.read import read_peft
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.nets.backbone import Backbone as CausalBackbone
from zoo.flow.nets.text import FrozenText
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.miipher.nets.backbone import Backbone as AudioBackbone

KERNEL = "someone/kernel"
INDEX = "model.safetensors.index.json"
ENCODEC = {"model_type": "encodec", "hidden_size": 16, "codebook_size": 16, "num_filters": 4}
CONFIGS = {
    "causal": CAUSAL["llama"],
    "text": T5,
    "audio": AUDIO["hubert"],
}  # fmt: skip
KINDS: dict[str, Callable[..., Any]] = {
    "causal": CausalBackbone,
    "text": partial(FrozenText, max_tokens=8),
    "audio": partial(AudioBackbone, layer=1),
}
# Settings that reach a loader of hub kernels, another repository, or a file elsewhere.
SETTINGS: dict[str, dict[str, Any]] = {
    "kernel": {"attn_implementation": KERNEL},
    "kernel, private name": {"_attn_implementation": KERNEL},
    "flash attention": {"attn_implementation": "flash_attention_2"},
    "kernel of a component": {"attn_implementation": {"text_config": KERNEL}},
    "kernel in a list": {"parts": [{"attn_implementation": KERNEL}]},
    "kernel of experts": {"experts_implementation": "sonicmoe"},
    "quantization by a hub kernel": {"quantization_config": {"quant_method": "mxfp4"}},
    "quantization of a component": {"text_config": {"quantization_config": {"quant_method": "eetq"}}},
    "weights elsewhere": {"transformers_weights": "../elsewhere/model.safetensors"},
    "fusion": {"fusion_config": {"rms_norm": True}},
    "backbone of a hub": {"backbone": "someone/model", "use_pretrained_backbone": True},
    "backbone of timm": {"backbone_config": {"model_type": "timm_backbone", "backbone": "hf-hub:someone/model"}},
    "model with kernels of its own": {"model_type": "rwkv"},
}
FILES: dict[str, dict[str, Any]] = {
    "adapter of another model": {"adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "some/model"}},
    "adapter of a package": {
        "adapter_config.json": {"peft_type": "LORA", "megatron_core": "zoo_decoy", "auto_mapping": {
            "base_model_class": "Thing", "parent_library": "zoo_decoy"}}
    },
    "code of an unknown type": {
        "config.json": {"model_type": "zoo_decoy", "auto_map": {"AutoConfig": "zoo_decoy.Thing"}}
    },
    "config elsewhere": {"config.json": {"configuration_files": ["../elsewhere/config.4.0.0.json"]}},
    "tokenizer elsewhere": {"tokenizer_config.json": {"fast_tokenizer_files": ["../elsewhere/tokenizer.4.0.json"]}},
    "weights above": {INDEX: {"metadata": {}, "weight_map": {"a": "../elsewhere/w.safetensors"}}},
    "pickles above": {"pytorch_model.bin.index.json": {"metadata": {}, "weight_map": {"a": "../elsewhere/w.bin"}}},
}  # fmt: skip
# What is read as it stands, without what it names being imported.
HARMLESS: dict[str, dict[str, Any]] = {
    "code beside the model": {
        "config.json": {"auto_map": {name: "zoo_decoy.Thing" for name in (
            "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForAudioXVector", "AutoTokenizer")}},
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["zoo_decoy.Thing", "zoo_decoy.Thing"]}},
    },
    "code of a hub": {"config.json": {"auto_map": {"AutoModelForCausalLM": "someone/model--code.Thing"}}},
    "generation beside the model": {"generation_config.json": {"custom_generate": "someone/model"}},
    "vocabulary elsewhere": {"tokenizer_config.json": {
        "vocab_file": "ELSEWHERE/vocab.json", "merges_file": "ELSEWHERE/merges.txt",
        "tokenizer_file": "ELSEWHERE/tokenizer.json", "special_tokens_map_file": "ELSEWHERE/map.json",
        "name_or_path": "someone/model", "chat_template": "{{ ''.__class__.__mro__ }}"}},
}  # fmt: skip


class Reached(BaseException):
    """Raised where a file would have been let out."""


@pytest.fixture(autouse=True)
def traps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """End a test when it reaches the network, hub kernels, a prompt or a file elsewhere; returns elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("config.4.0.0.json", "tokenizer.4.0.json", "vocab.json", "merges.txt", "tokenizer.json", "map.json"):
        (elsewhere / name).write_text("{}")
    torch.save({"a": torch.zeros(1)}, elsewhere / "w.bin")
    save_file({"a": torch.zeros(1)}, elsewhere / "w.safetensors")
    watched = [f"{elsewhere}{os.sep}"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def reached(*args: Any, **_: Any) -> Any:
        raise Reached(args)

    monkeypatch.setattr(socket.socket, "connect", reached)
    monkeypatch.setattr(socket, "getaddrinfo", reached)
    monkeypatch.setattr("builtins.input", reached)
    for module in (hub_kernels, transformers.modeling_utils, transformers.modeling_flash_attention_utils):
        for name in ("get_kernel", "lazy_load_kernel", "load_and_register_attn_kernel", "lazy_import_flash_attention"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, reached)

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watched and os.path.realpath(str(args[0])).startswith(watched[0]):
            raise Reached(args)

    sys.addaudithook(note)
    yield elsewhere
    signal.alarm(0)  # of a prompt
    watched.clear()
    assert "zoo_decoy" not in sys.modules


def folder_of(kind: str, root: Path) -> Path:
    """A sound folder of a kind of model."""
    folder = root / "model"
    folder.mkdir()
    KINDS[kind](config=dict(CONFIGS[kind])).save_source(folder)
    return folder


def put(folder: Path, files: dict[str, dict[str, Any]], elsewhere: Path) -> None:
    """Add values to JSON files; an index takes the place of the weights."""
    for name, values in files.items():
        file = folder / name
        content = json.loads(file.read_text()) if file.is_file() else {}
        text = json.dumps({**content, **values}).replace("ELSEWHERE", str(elsewhere))
        file.write_text(text)
        if name.endswith(".index.json"):
            (folder / "model.safetensors").unlink()
    (folder / "zoo_decoy.py").write_text("raise SystemExit('imported')\n")


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and text
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_a_recipe_and_of_a_folder_are_refused(kind: str, tmp_path: Path, traps: Path) -> None:
    folder = folder_of(kind, tmp_path)
    sound = (folder / "config.json").read_text()
    for name, settings in SETTINGS.items():
        with pytest.raises(ValueError) as caught:
            KINDS[kind](config={**CONFIGS[kind], **settings})
        one_line(caught.value)
        (folder / "config.json").write_text(json.dumps({**json.loads(sound), **settings}))
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            KINDS[kind](source=str(folder))
        assert "config.json" in one_line(caught.value), name


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_folder_are_refused(kind: str, name: str, tmp_path: Path, traps: Path) -> None:
    folder = folder_of(kind, tmp_path)
    put(folder, FILES[name], traps)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        KINDS[kind](source=str(folder))
    message = one_line(caught.value)
    assert next(iter(FILES[name])) in message and "trust_remote_code" not in message


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("kind", KINDS)
def test_harmless_files_load(kind: str, name: str, tmp_path: Path, traps: Path) -> None:
    folder = folder_of(kind, tmp_path)
    put(folder, HARMLESS[name], traps)
    KINDS[kind](source=str(folder))


@pytest.mark.parametrize("load", [
    lambda folder: PretrainedTokenizer(folder).build(),
    lambda folder: EncodecFeatures(folder),
    lambda folder: EncodecFeatures(config={**ENCODEC, "attn_implementation": KERNEL}),
    lambda folder: SpeakerSimilarity(folder).load(),
], ids=["tokenizer", "encodec", "encodec of a recipe", "speaker"])  # fmt: skip
def test_every_other_loader_checks_first(load: Callable[[str], Any], tmp_path: Path, traps: Path) -> None:
    folder = folder_of("text", tmp_path)
    put(folder, {"config.json": {"attn_implementation": KERNEL}}, traps)
    with pytest.raises((ValueError, FileNotFoundError), match="attn_implementation"):
        load(str(folder))


# Values of adapter_config.json that peft itself would import, download or open; here the file is read without peft.
ADAPTERS: dict[str, tuple[dict[str, Any], bool]] = {
    "base model of a hub": ({"base_model_name_or_path": "someone/model", "revision": "main"}, False),
    "class of a package": (
        {"auto_mapping": {"base_model_class": "Thing", "parent_library": "zoo_decoy"}, "base_model_name_or_path": None},
        False,
    ),
    "core of a package": ({"megatron_core": "zoo_decoy", "megatron_config": {"a": 1}}, False),
    "first weights from elsewhere": ({"init_lora_weights": "ELSEWHERE/w.bin"}, False),
    "first weights of CorDA": ({"init_lora_weights": "corda", "corda_config": {"cache_file": "ELSEWHERE/w.bin"}}, True),
    "other kind": ({"peft_type": "XLORA", "adapters": {"0": "someone/model"}}, True),
    "prompt with a tokenizer": (
        {"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "someone/model", "tokenizer_kwargs": {
            "trust_remote_code": True}},
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapter_config_is_read_without_peft(name: str, tmp_path: Path, traps: Path) -> None:
    values, refused = ADAPTERS[name]
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{layer}.lora_A.weight": torch.ones(2, 8), f"{layer}.lora_B.weight": torch.ones(8, 2)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | values).replace("ELSEWHERE", str(traps)))
    if not refused:
        assert len(read_peft(tmp_path).weights) == 1
        return
    with pytest.raises(ValueError) as caught:
        read_peft(tmp_path)
    assert "adapter_config.json" in one_line(caught.value)
