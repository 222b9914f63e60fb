"""The original's YAML configuration as a recipe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zoo.ci_llm.nets.agents import LINEAR_LAYERS
from zoo.convert.network_description import component
from zoo.convert.settings import SettingsReader, read_settings_file

PRECISIONS = {"no": "32-true", "fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
SCHEDULES = {
    "cosine": "zoo.training.WarmupCosine",
    "linear": "zoo.training.WarmupLinear",
}
# without effect on training, or the default here
IMPLIED = ("parallel_mode",)
DATA = "${oc.env:ZOO_DATA,data}"
EMPTY: tuple[Any, ...] = (None, False, 0, 0.0)  # values without a note
EPOCHS = ("epochs", 1, int)
ACCUMULATION = ("gradient_accumulation_steps", 4, int)
GSM8K_ITEMS = 7473  # training questions
ABSENT = {"max_train_steps": 200, "debug_subset_size": 16}  # where a file lacks the key; null sets no limit
HINTS = {
    "output_dir": "set trainer.default_root_dir",
    "resume_from_checkpoint": "zoo fit --ckpt_path RUN, or zoo convert of the folder first",
    "use_deepspeed": "add the recipe trainer/deepspeed",
    "deepspeed_config_file": "add the recipe trainer/deepspeed; its batch sizes follow from the trainer",
    "profile_steps": "set trainer.profiler: simple",
    "log_memory_usage": "the log has throughput and memory",
    "processed_data_path_train": "texts are tokenised into data.init_args.cache",
    "processed_data_path_eval": "texts are tokenised into data.init_args.cache",
    "spark": "not needed: texts are tokenised into data.init_args.cache",
    "eval_batch_size": "an option of zoo evaluate ci_llm",
    **dict.fromkeys(("max_new_tokens", "max_new_tokens_eval"), "an option of zoo evaluate ci_llm"),
    "dirichlet_alpha_aggregator": "set model.init_args.aggregator to zoo.ci_llm.Dirichlet with this alpha",
}


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Translate a configuration of the original into a recipe for `zoo fit`.

    Missing values are the defaults of the original's code. The recipe trains with next-token loss, answers with EOS and
    all agents, as the original describes, not as its code does.

    Returns:
        The recipe, and the keys without a counterpart, with a hint on what to do instead.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no configuration of CI-LLM, or a value is invalid.
    """
    config = read_settings_file(path := Path(path))
    if not {"model_name", "num_agents"} <= set(config):
        keys = ", ".join(map(str, list(config)[:6]))
        raise ValueError(f"{path} is no configuration of CI-LLM: expected model_name and num_agents, found {keys}")
    settings = SettingsReader({**ABSENT, **config}, path, IMPLIED, HINTS)
    steps = _steps(settings)
    save_steps, accumulated = settings.number("save_steps", 100, int), settings.number(*ACCUMULATION)
    recipe = {
        "seed_everything": settings.number("seed", 42, int),
        "trainer": {
            "max_epochs": settings.number(*EPOCHS),  # whichever comes first
            **({} if steps is None else {"max_steps": steps}),
            "precision": settings.choice("mixed_precision", "no", PRECISIONS),
            "accumulate_grad_batches": accumulated,
            "val_check_interval": accumulated * min(save_steps, steps or save_steps),  # batches
            "check_val_every_n_epoch": None,
            "gradient_clip_val": 1.0,  # the original's DeepSpeed file alone has it
            "log_every_n_steps": settings.number("logging_steps", 10, int),
            "callbacks": [{"class_path": "zoo.ci_llm.AdapterFolders"}],
        },
        "checkpoints": {"every_n_steps": save_steps, "monitor": "val/loss"},
        "model": component("zoo.ci_llm.CrowdTask", **_model(settings, steps)),
        "data": component("zoo.ci_llm.TextData", **_data(settings)),
    }
    return recipe, settings.unused(EMPTY)


def _steps(settings: SettingsReader) -> int | None:
    """Optimizer steps of the run on one device; None where the data, and so their epochs, are unknown."""
    steps = settings.number("max_train_steps", None, int)
    if steps is not None or "gsm8k" not in str(settings.get("dataset_name", "gsm8k")):
        return steps
    items = settings.number("debug_subset_size", GSM8K_ITEMS, int)
    batches = math.ceil(items / max(settings.number("batch_size", 1, int), 1))
    return settings.number(*EPOCHS) * math.ceil(batches / max(settings.number(*ACCUMULATION), 1))


def _model(settings: SettingsReader, steps: int | None) -> dict[str, Any]:
    """Arguments of `CrowdTask`; the schedule spans the run, there is none where its length is unknown."""
    number, take = settings.number, settings.get
    targets = take("lora_target_modules", LINEAR_LAYERS)
    backbone = component(
        "zoo.ci_llm.Backbone",
        source=take("model_name"),
        quantization="nf4",
        attention="eager",
        gradient_checkpointing=settings.flag("use_gradient_checkpointing", True),
    )
    agents = component(
        "zoo.ci_llm.Agents",
        count=number("num_agents", 3, int),
        rank=number("lora_rank", 8, int),
        alpha=number("lora_alpha", 16, int),
        dropout=number("lora_dropout", 0.05),
        targets=targets if isinstance(targets, str) else list(targets),
        init="normal" if settings.flag("initialize_adapters_rand", False) else "lora",
        dropconnect=number("dropconnect_p", 0.0),
        dropconnect_rescale=False,
    )
    weight, projections = number("lambda_sw", 0.01), number("swd_num_projections", 50, int)
    optimizer = component("torch.optim.AdamW", lr=number("lr", 5e-5), weight_decay=number("weight_decay", 0.01))
    share, scheduler = number("num_warmup_steps_ratio", 0.0), None
    if steps is not None:
        name = settings.choice("lr_scheduler_type", "linear", SCHEDULES)
        scheduler = component(name, warmup_steps=share, start_at_zero=True)
    else:
        name = settings.get("lr_scheduler_type", "linear")
        settings.notes.append(
            f"lr_scheduler_type: {name} with a warm-up of {share:g} of the run; the rate is constant until you set "
            "model.init_args.scheduler, which needs the number of steps of all epochs"
        )
    return {
        "crowd": component("zoo.ci_llm.Crowd", backbone=backbone, agents=agents),
        "tokenizer": "${data.init_args.tokenizer}",
        "template": "${data.init_args.text_format.template}",
        "prompt_field": "${data.init_args.text_format.prompt_field}",
        "diversity": component("zoo.ci_llm.Diversity", weight=weight, projections=projections),
        "optimizer": optimizer,
        "scheduler": scheduler,
    }


def _data(settings: SettingsReader) -> dict[str, Any]:
    name = str(settings.get("dataset_name", "gsm8k"))
    tokenizer = settings.get("tokenizer_name", settings.get("model_name"))
    if (subset := settings.get("dataset_subset", "main")) != "main":
        settings.notes.append(f"dataset_subset: name the folder of {subset} as data.init_args.root")
    return {
        "root": name if name.startswith((".", "/")) or Path(name).exists() else f"{DATA}/{Path(name).name}",
        "tokenizer": component("zoo.ci_llm.PretrainedTokenizer", source=tokenizer),
        "text_format": {
            "prompt_field": "question",
            "template": "{prompt}",
        },  # the original's text is question, space, answer
        "max_length": settings.number("max_seq_length", 512, int),
        "batch_size": settings.number("batch_size", 1, int),
        "agents": "${model.init_args.crowd.init_args.agents.init_args.count}",
        "max_items": settings.number("debug_subset_size", None, int),
        "num_workers": settings.number("num_workers", 4, int),
        "seed": settings.number("seed", 42, int),
    }
