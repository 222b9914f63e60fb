"""The original's YAML configuration as a recipe of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.ci_llm.nets.agents import LINEAR_LAYERS
from zoo.common.reading.text import safe_load

PRECISIONS = {"no": "32-true", "fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
SCHEDULES = {
    "cosine": "zoo.training.RampedCosine",
    "linear": "zoo.training.WarmupLinear",
}
# read by the original's script alone, or the same here without being said
IMPLIED = ("parallel_mode", "dataset_subset", "tokenizer_name")
DATA = "${oc.env:ZOO_DATA,data}"
GSM8K_ITEMS = 7473  # training questions
HINTS = {
    "lr_scheduler_type": "set model.init_args.scheduler, once the number of steps of all epochs is known",
    "output_dir": "set trainer.default_root_dir",
    "resume_from_checkpoint": "zoo fit --ckpt_path RUN, or zoo convert of the folder first",
    "use_deepspeed": "add --config configs/trainer/deepspeed.yaml",
    "deepspeed_config_file": "add --config configs/trainer/deepspeed.yaml; its batch sizes follow from the trainer",
    "profile_steps": "set trainer.profiler: simple",
    "log_memory_usage": "the log has throughput and memory",
    "processed_data_path_train": "texts are tokenised into data.init_args.cache",
    "processed_data_path_eval": "texts are tokenised into data.init_args.cache",
    "spark": "not needed: texts are tokenised into data.init_args.cache",
    "eval_batch_size": "an option of zoo evaluate ci_llm",
    "max_new_tokens": "an option of zoo evaluate ci_llm",
    "dirichlet_alpha_aggregator": "an option of zoo evaluate ci_llm",
}


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn a configuration of the original into a recipe for `zoo fit`.

    Values that it does not say are those of the original's code. The recipe trains what the original meant to train
    (next-token loss, answers with EOS, all agents), not what it did.

    Args:
        path: the original's YAML file.

    Returns:
        The recipe, and the keys without a counterpart, with a word on what to do instead.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no configuration of CI-LLM, or a value cannot be.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        config = safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(config, dict) or not {"model_name", "num_agents"} <= set(config):
        found = ", ".join(map(str, list(config)[:6])) if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} is no configuration of CI-LLM: expected model_name and num_agents, found {found}")
    settings = _Settings(config, path)
    recipe = {
        "seed_everything": settings.number("seed", 42, int),
        "trainer": _trainer(settings),
        "checkpoints": {"every_n_batches": settings.number("save_steps", 100, int), "monitor": "val/loss"},
        "model": {"class_path": "zoo.ci_llm.CrowdTask", "init_args": _model(settings)},
        "data": {"class_path": "zoo.ci_llm.TextData", "init_args": _data(settings)},
    }
    return recipe, settings.left()


class _Settings:
    """Values of a configuration, and which of them were asked for."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self.config = config
        self.path = path
        self.taken = set(IMPLIED)

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key; null counts as not given."""
        self.taken.add(key)
        value = self.config.get(key)
        return default if value is None else value

    def number(self, key: str, default: Any, kind: type[int] | type[float] = float) -> Any:
        """A number; YAML reads `3e-5` as text."""
        value = self.take(key, default)
        if value is None:
            return None
        try:
            result = kind(float(value))
        except (TypeError, ValueError):
            raise ValueError(f"{self.path}: {key} is a number, not {value!r}") from None
        return result

    def choice(self, key: str, default: str, known: Mapping[str, str]) -> str:
        """What a word stands for; YAML reads a bare `no` as false."""
        value = self.take(key, default)
        word = "no" if value is False else str(value)
        if word not in known:
            raise ValueError(f"{self.path}: {key} is one of {', '.join(known)}, not {word!r}")
        return known[word]

    def left(self) -> list[str]:
        """Keys nobody asked for that hold something."""
        keys = [str(key) for key, value in self.config.items() if key not in self.taken and value not in (None, False)]
        return [f"{key}: {HINTS[key]}" if key in HINTS else key for key in keys]


def _trainer(settings: _Settings) -> dict[str, Any]:
    steps = _steps(settings)
    return {
        **({"max_epochs": _epochs(settings)} if steps is None else {"max_steps": steps}),
        "precision": settings.choice("mixed_precision", "no", PRECISIONS),
        "accumulate_grad_batches": _accumulated(settings),
        "gradient_clip_val": 1.0,  # the original's DeepSpeed file alone has it
        "log_every_n_steps": settings.number("logging_steps", 10, int),
        "callbacks": [{"class_path": "zoo.ci_llm.AdapterFolders"}],
    }


def _epochs(settings: _Settings) -> int:
    return settings.number("epochs", 1, int)


def _accumulated(settings: _Settings) -> int:
    return settings.number("gradient_accumulation_steps", 4, int)


def _steps(settings: _Settings) -> int | None:
    """Optimizer steps of the run on one device; None for as many as the epochs of unknown data have."""
    steps = settings.number("max_train_steps", None, int)
    if steps is not None or "gsm8k" not in str(settings.take("dataset_name", "gsm8k")):
        return steps
    items = settings.number("debug_subset_size", GSM8K_ITEMS, int)
    batches = math.ceil(items / settings.number("batch_size", 1, int))
    return _epochs(settings) * math.ceil(batches / _accumulated(settings))


def _model(settings: _Settings) -> dict[str, Any]:
    backbone = {
        "source": settings.take("model_name"),
        "quantization": "nf4",
        "attention": "eager",
        "gradient_checkpointing": bool(settings.take("use_gradient_checkpointing", True)),
    }
    agents = {
        "count": settings.number("num_agents", 3, int),
        "rank": settings.number("lora_rank", 8, int),
        "alpha": settings.number("lora_alpha", 16, int),
        "dropout": settings.number("lora_dropout", 0.05),
        "targets": list(settings.take("lora_target_modules", LINEAR_LAYERS)),
        "init": "normal" if settings.take("initialize_adapters_rand", False) else "lora",
        "dropconnect": settings.number("dropconnect_p", 0.0),
        "dropconnect_rescale": False,
    }
    diversity = {
        "weight": settings.number("lambda_sw", 0.01),
        "projections": settings.number("swd_num_projections", 50, int),
    }
    optimizer = {"lr": settings.number("lr", 5e-5), "weight_decay": settings.number("weight_decay", 0.01)}
    crowd = {"backbone": _spec("Backbone", backbone), "agents": _spec("Agents", agents)}
    return {
        "crowd": _spec("Crowd", crowd),
        "tokenizer": "${data.init_args.tokenizer}",
        "template": "${data.init_args.template}",
        "diversity": _spec("Diversity", diversity),
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": optimizer},
        "scheduler": _schedule(settings),
    }


def _schedule(settings: _Settings) -> dict[str, Any] | None:
    """Warm-up and decay over the whole run; none where its length is not known."""
    steps, share = _steps(settings), settings.number("num_warmup_steps_ratio", 0.0)
    if steps is None:
        return None
    arguments = {"warmup_steps": int(share * steps), "total_steps": "${trainer.max_steps}"}
    return {"class_path": settings.choice("lr_scheduler_type", "linear", SCHEDULES), "init_args": arguments}


def _data(settings: _Settings) -> dict[str, Any]:
    name = str(settings.take("dataset_name", "gsm8k"))
    return {
        "root": name if name.startswith((".", "/")) else f"{DATA}/{Path(name).name}",
        "tokenizer": _spec("PretrainedTokenizer", {"source": settings.take("model_name")}),
        "template": "{prompt}",  # the original's text is question, space, answer
        "max_length": settings.number("max_seq_length", 512, int),
        "batch_size": settings.number("batch_size", 1, int),
        "max_items": settings.number("debug_subset_size", None, int),
        "num_workers": settings.number("num_workers", 4, int),
        "seed": settings.number("seed", 42, int),
    }


def _spec(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"zoo.ci_llm.{name}", "init_args": arguments}
