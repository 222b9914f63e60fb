"""Load models, configurations and tokenizers of transformers, whose files are checked first.

They may come from anybody, and transformers turns some of their values into downloads of code, into imports and into
paths. Only this module calls transformers' `from_pretrained`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.common.foreign_files import iterate_keys, load_json
from zoo.runs.frozen import suppress_loading_messages

ALIGNMENT = 64  # bytes, to which torch aligns what it allocates
ATTENTION = ("sdpa", "eager")
EXPERTS = ("eager", "batched_mm", "grouped_mm")
# Settings, in any nesting, and the values that start no download and no import; null is always allowed.
ALLOWED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attn_implementation", "_attn_implementation", "_attn_implementation_internal"), ATTENTION),
    **dict.fromkeys(("experts_implementation", "_experts_implementation", "_experts_implementation_internal"), EXPERTS),
    **dict.fromkeys(("backbone", "fusion_config", "kernel_config", "transformers_weights"), ()),
    **dict.fromkeys(("use_kernels", "use_pretrained_backbone", "use_timm_backbone"), (False,)),
    "quantization_config": ("bitsandbytes",),  # its quant_method; other methods download kernels
}
# Models whose code downloads kernels or weights.
FETCHING = ("mra", "rwkv", "sam3_video", "timm_backbone", "timm_wrapper", "yoso")
# Where the files of a folder name other files of it.
FILE_LISTS = {
    "config.json": "configuration_files",
    "tokenizer_config.json": "fast_tokenizer_files",
    "*.index.json": "weight_map",
}


def check_settings(settings: Mapping[str, Any], path: str) -> None:
    """Refuse settings of a model that make transformers download code or read files elsewhere; ValueError names one.

    `settings` are those of a config.json, or the `config` of a recipe; `path` is the file or key that they come from.
    """
    for key, value in iterate_keys(settings):
        name = key.rpartition(".")[2]
        if name == "quantization_config" and isinstance(value, Mapping):
            value = value.get("quant_method", "")
        if name in ALLOWED and not _is_allowed(value, ALLOWED[name]):
            expected = " or ".join(map(str, ALLOWED[name])) or "nothing"
            raise ValueError(f"{path}: {key} is {value!r}, expected {expected}; delete the key")
        if name == "model_type" and value in FETCHING:
            raise ValueError(f"{path}: {key} {value!r} downloads code or weights by itself; use another model")


def check_pretrained(source: str, revision: str | None = None, local_files_only: bool = False) -> None:
    """Check the files of a model or tokenizer, hub id or folder; what is missing is left to the loader's own message.

    Raises:
        ValueError: naming the file, and the setting in it.
    """
    from transformers import PretrainedConfig
    from transformers.utils import find_adapter_config_file

    for pattern, key in FILE_LISTS.items():
        for file in sorted(Path(source).glob(pattern)):
            _check_file_names(file, key)
    try:
        adapter = find_adapter_config_file(source, revision=revision, local_files_only=local_files_only)
        settings, _ = PretrainedConfig.get_config_dict(source, revision=revision, local_files_only=local_files_only)
    except OSError:
        return
    if adapter is not None:
        raise ValueError(
            f"{source}: adapter_config.json would load another model and adapters on top; name the folder of the "
            "backbone itself, and read adapters by init_from or `zoo convert ci_llm`"
        )
    check_settings(settings, f"{source}/config.json")


def _is_allowed(value: Any, allowed: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping):  # of parts of a model by their names
        return bool(allowed) and all(_is_allowed(each, allowed) for each in value.values())
    return value is None or any(type(value) is type(each) and value == each for each in allowed)


def _check_file_names(file: Path, key: str) -> None:
    content = load_json(file.read_bytes())
    names = content.get(key) if isinstance(content, Mapping) else None
    for name in names.values() if isinstance(names, Mapping) else names or ():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name:
            raise ValueError(f"{file}: {key} names {name!r}, expected the name of a file next to it")


def from_pretrained(cls: Any, source: str, revision: str | None = None, **options: Any) -> Any:
    """Call `from_pretrained` of a class of transformers after its files are checked.

    Raises:
        FileNotFoundError: the source cannot be read.
        ValueError: its files would make transformers download or run code.
    """
    if not Path(source).is_dir() and not _hub_answers(source, revision):
        options["local_files_only"] = True
    check_pretrained(source, revision, options.get("local_files_only", False))
    try:
        with suppress_loading_messages():
            return cls.from_pretrained(source, revision=revision, trust_remote_code=False, **options)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"model {source}: neither a local folder nor available from the hub ({reason}); without network, "
            "copy its folder to this machine and name that"
        ) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{source}: this model needs code of its own (auto_map in config.json), which zoo never runs; "
            "name a model that transformers has a class for"
        ) from error


@functools.cache
def _hub_answers(source: str, revision: str | None) -> bool:
    """Ask the hub for a model, once in a process: loaders, which ask it a dozen times, then read the cache alone."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(source, "config.json", revision=revision))
    except (errors.HfHubHTTPError, ValueError):  # it answers, or the loader refuses the name
        return True
    except (errors.HTTPError, OSError):
        return False
    return True


def load_pretrained(model: Any, source: str, revision: str | None, **options: Any) -> Any:
    """Load a model, each tensor in separate memory; arguments and errors as those of `from_pretrained`.

    The header of a file decides where its tensors begin, and the kernels of a CPU sum in an order that depends on it: a
    resumed run, which reads its copy, would differ from the run that read the source.
    """
    loaded = from_pretrained(model, source, revision, **options)
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()
    return loaded


def load_config(source: str, revision: str | None = None) -> Any:
    """Load the configuration of a model of transformers; errors as those of `from_pretrained`."""
    from transformers import AutoConfig

    return from_pretrained(AutoConfig, source, revision)


def load_tokenizer(source: str, revision: str | None = None) -> Any:
    """Load the tokenizer of a model of transformers; errors as those of `from_pretrained`."""
    from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer, source, revision)


def build_config(settings: Mapping[str, Any]) -> Any:
    """Build a configuration of transformers from `model_type` and other settings; errors as of `check_settings`."""
    from transformers import AutoConfig

    check_settings(settings, "config")
    return AutoConfig.for_model(**{"model_type": "", **settings})


def find_backbone(source: str) -> str:
    """Resolve a source in transformers' layout: a hub id or folder is itself, a folder of runs its newest `backbone/`.

    FileNotFoundError where there is no such folder, or it holds no backbone.
    """
    folder = Path(source)
    if not folder.is_dir():
        if source.startswith((".", "/", "runs/")):
            raise FileNotFoundError(f"backbone: no folder {source}; a demo_backbone recipe trains one")
        return source
    if (folder / "config.json").is_file():
        return source
    newest = max(folder.rglob("backbone/config.json"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise FileNotFoundError(f"backbone: neither {source} nor a run below it holds config.json")
    return str(newest.parent)
