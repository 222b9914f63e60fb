"""The commands of the Accelerate version, `train_adapter.py --config-name NAME key=value ...`, in the words of ours.

A key of the original whose meaning has no counterpart is named and passed over; a key that the original never had is an
error, as it was there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from zoo.common.options import take_option
from zoo.common.systems import recipe_root
from zoo.convert import old_calls
from zoo.convert.old_calls import PRECISIONS, Call, is_true, shown

Stage = Literal["adapter", "pretrain", "finetune"]

RECIPES: dict[Stage, str] = {
    "adapter": "adapter_layer_6",
    "pretrain": "hifigan_pretrain_layer_6",
    "finetune": "hifigan_finetune_layer_6",
}
# names of the original's configurations that are called otherwise here
RENAMED_RECIPES = {
    "adapter_layer_6_mhubert_147": "adapter_layer_6",
    "adapter_layer_6_mhubert_147_ddp": "adapter_layer_6",
    "adapter_l2": "adapter_l2_hubert_large",
    "wav2vec2_base_l2": "adapter_l2_wav2vec2_base",
    "wav2vec2_large_l2": "adapter_l2_wav2vec2_large",
    "wavlm_base_l2": "adapter_l2_wavlm_base",
    "hifigan_pretrain_layer_6_mhubert_147": "hifigan_pretrain_layer_6",
    "hifigan_finetune_layer_6_mhubert_147": "hifigan_finetune_layer_6",
}
# what the original counts in batches, and the section and option here
COUNTED = {
    "steps": ("trainer", "max_steps"),
    "validation_interval": ("trainer", "val_check_interval"),
    "checkpoint.save_interval": ("checkpoints", "every_n_batches"),
}
_BOTH = ("optimizer_g", "optimizer_d")
OPTIMIZERS: dict[Stage, tuple[str, ...]] = {"adapter": ("optimizer",), "pretrain": _BOTH, "finetune": _BOTH}
_CLEANER = "model.init_args.encoder.init_args"
BACKBONES: dict[Stage, str] = {
    "adapter": f"{_CLEANER}.backbone.init_args",
    "pretrain": _CLEANER,
    "finetune": f"{_CLEANER}.backbone.init_args",
}
_GENERATOR = "model.init_args.generator.init_args"
WEIGHTS = "model.init_args.loss_weights"

# {optimizer}: every optimizer of the stage; {backbone}: the arguments of its backbone
RENAMED: dict[str, tuple[str, ...]] = {
    "validation_batches": ("trainer.limit_val_batches",),
    "log_interval": ("trainer.log_every_n_steps",),
    "save_dir": ("trainer.default_root_dir",),
    "seed": ("seed_everything", "data.init_args.seed"),
    "loader.num_workers": ("data.init_args.num_workers",),
    "checkpoint.keep_last_n": ("checkpoints.keep_last",),
    "wandb.project": ("wandb.project",),
    "wandb.entity": ("wandb.entity",),
    "wandb.name": ("wandb.name",),
    "wandb.tags": ("wandb.tags",),
    "model.hubert_model_name": ("{backbone}.source",),
    "model.hubert_layer": ("{backbone}.layer",),
    "model.model_type": ("{backbone}.family",),
    "optim.lr": ("model.init_args.{optimizer}.init_args.lr",),
    "optim.betas": ("model.init_args.{optimizer}.init_args.betas",),
    "optim.weight_decay": ("model.init_args.{optimizer}.init_args.weight_decay",),
    "lr": ("model.init_args.{optimizer}.init_args.lr",),
    "betas": ("model.init_args.{optimizer}.init_args.betas",),
}
_ADAPTERS = {"model.adapter_hidden_dim": (f"{_CLEANER}.adapters.init_args.hidden_dim",)}
_VOCODER = {
    "optim.max_grad_norm": ("model.init_args.clip_g", "model.init_args.clip_d"),
    "lambda_mel": (f"{WEIGHTS}.g/mel",),
    "lambda_adv": (f"{WEIGHTS}.g/adv_mpd", f"{WEIGHTS}.g/adv_msd"),
    "upsample_rates": (f"{_GENERATOR}.upsample_rates",),
    "upsample_kernel_sizes": (f"{_GENERATOR}.upsample_kernel_sizes",),
    "resblock_kernel_sizes": (f"{_GENERATOR}.resblock_kernel_sizes",),
    "resblock_dilations": (f"{_GENERATOR}.resblock_dilation_sizes",),
}
RENAMED_IN: dict[Stage, Mapping[str, tuple[str, ...]]] = {
    "adapter": {**_ADAPTERS, "optim.max_grad_norm": ("trainer.gradient_clip_val",)},
    "pretrain": _VOCODER,
    "finetune": {**_VOCODER, **_ADAPTERS},
}
_R1 = "the original's scale is not known, and the paper has no R1 penalty"
# a key, or the beginning of keys that ends in a dot
WITHOUT_COUNTERPART = {
    "dataset.val_path_pattern": "validation is taken out of the corpus: data.init_args.val_speakers, val_items",
    "dataset.shuffle": "every epoch has a new order of all clips",
    "training.dataloader_drop_last": "training always drops the last, incomplete batch",
    "loader.pin_memory": "memory is pinned where there is a GPU",
    "model.adapter_hidden_dim": "this stage has no adapters",
    "checkpoint.save_wandb_metadata": "the W&B run id always lies in the run folder",
    "wandb.id": "the id lies in the run folder and is taken up by a resume",
    "wandb.notes": "edit them on the run's page",
    "wandb.log_model": "checkpoints stay in the run folder",
    "wandb.log_audio": "audio is logged with every validation: model.init_args.media_items",
    "audio_log_interval": "audio is logged with every validation: trainer.val_check_interval",
    "accelerate.": "set it in configs/trainer/fsdp.yaml, deepspeed.yaml or ddp.yaml",
    "distributed.": "set it in configs/trainer/ddp.yaml",
    "lambda_stft": "the original read it nowhere",
    "lambda_mpd": "the original read it nowhere; here model.init_args.loss_weights has g/adv_mpd",
    "lambda_msd": "the original read it nowhere; here model.init_args.loss_weights has g/adv_msd",
    "r1_lambda": _R1,
    "optim.r1_lambda": _R1,
}
SCHEDULES = {
    "constant": None,
    "constant_with_warmup": "zoo.training.WarmupConstant",
    "linear": "zoo.training.WarmupLinear",
    "cosine": "zoo.training.WarmupCosine",
    "cosine_with_restarts": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
}
_SCHEDULE = "optim.scheduler."


def command(stage: Stage, arguments: Sequence[str] | None = None) -> list[str]:
    """Translate the call of an old script, see `zoo.convert.old_calls.command`."""
    return old_calls.command(partial(translate, stage), arguments)


def translate(stage: Stage, arguments: Sequence[str], environment: Mapping[str, str]) -> Call:
    """Translate a call in Hydra's manner.

    Args:
        stage: of the old script.
        arguments: `--config-name NAME`, overrides `key=value`, and options of `zoo fit`, which are passed on.
        environment: variables of a launcher.

    Returns:
        The call.

    Raises:
        FileNotFoundError: there is no such recipe.
        ValueError: a recipe of another stage, a key that the original has not, or a value that cannot be.
    """
    name, given, rest = _read(stage, arguments)
    recipe = _recipe(stage, name)
    call = Call()
    flags = [*_precision(given, environment), *_batches(stage, given, yaml.safe_load(recipe.read_text()))]
    flags += [*_schedule(stage, given), *_start(given), *_extras(given, call.notes)]
    configs = [recipe, *_fragments(given, environment)]
    for key, value in given.items():
        targets = {**RENAMED, **RENAMED_IN[stage]}.get(key)
        if targets is None:
            call.notes.append(f"no counterpart: {key}={value}: {_hint(key)}")
        elif key == "validation_batches" or not _is_null(value):
            flags += _options(stage, targets, "1.0" if _is_null(value) else value)
    # one process a device, as many as the launcher has started
    devices, nodes = old_calls.processes(environment)
    call.command = ["fit", *(part for config in configs for part in ("--config", shown(config)))]
    call.command += [f"--trainer.devices={devices}", f"--trainer.num_nodes={nodes}", *flags, *rest]
    return call


def _read(stage: Stage, arguments: Sequence[str]) -> tuple[str, dict[str, str], list[str]]:
    """Split a call into the configuration's name, the overrides, and what is passed on."""
    names, rest = take_option(list(arguments), "--config-name")
    more, rest = take_option(rest, "-cn")
    for option in ("--config-path", "-cp", "--config-dir", "-cd", "--multirun", "-m"):
        if any(argument.split("=")[0] == option for argument in rest):
            raise ValueError(f"{option} has no counterpart: recipes lie in configs/miipher; see `zoo fit --help`")
    overrides = [argument for argument in rest if not argument.startswith("-") and "=" in argument]
    given = dict(override.lstrip("+").split("=", 1) for override in overrides)
    return [RECIPES[stage], *names, *more][-1], given, [each for each in rest if each not in overrides]


def _recipe(stage: Stage, name: str) -> Path:
    folder = recipe_root() / "miipher"
    path = folder / f"{RENAMED_RECIPES.get(name.removesuffix('.yaml'), name.removesuffix('.yaml'))}.yaml"
    if not path.is_file() or _stage_of(path) != stage:
        fitting = [each.stem for each in sorted(folder.glob("*.yaml")) if _stage_of(each) == stage]
        known = ", ".join([*fitting, *(old for old, new in RENAMED_RECIPES.items() if new in fitting)])
        problem = "is a recipe of another stage" if path.is_file() else "is no recipe here"
        raise FileNotFoundError(f"--config-name {name} {problem}; for this command there are {known}")
    return path


def _stage_of(recipe: Path) -> Stage | None:
    model = yaml.safe_load(recipe.read_text(encoding="utf-8"))["model"]
    kind, encoder = (spec["class_path"].rpartition(".")[2] for spec in (model, model["init_args"]["encoder"]))
    if kind == "VocoderTask":
        return "finetune" if encoder == "Cleaner" else "pretrain"
    return "adapter" if kind == "AdapterTask" else None


def _precision(given: dict[str, str], environment: Mapping[str, str]) -> list[str]:
    on_cpu = is_true(given.pop("training.force_cpu", "false")) or old_calls.is_on_cpu(environment)
    flags = ["--trainer.accelerator=cpu"] if on_cpu else []
    precision = given.pop("training.mixed_precision", None)
    if precision is not None:
        if precision not in PRECISIONS:
            raise ValueError(f"training.mixed_precision={precision}: expected {', '.join(PRECISIONS)}")
        # fp16 needs a GPU; on the CPU the original ran in fp32 as well
        flags.append(f"--trainer.precision={PRECISIONS['no' if on_cpu and precision == 'fp16' else precision]}")
    return flags


def _batches(stage: Stage, given: dict[str, str], recipe: dict[str, Any]) -> list[str]:
    """Batch size, accumulation and what counts steps, which depend on each other.

    The original's batch is what is processed at once; it counts such batches, of which an optimizer step gathers
    several. Here steps are optimizer steps, and the GAN splits one batch into so many parts; Lightning counts the
    validation interval in batches.
    """
    model, trainer, data = recipe["model"]["init_args"], recipe["trainer"], recipe["data"]["init_args"]
    settings, key = (trainer, "accumulate_grad_batches") if stage == "adapter" else (model, "accumulate")
    usual = settings.get(key, 1)
    accumulation = [given.pop(prefix + "gradient_accumulation_steps", None) for prefix in ("training.", "")]
    parts = _whole("gradient_accumulation_steps", next((value for value in accumulation if value), str(usual)))
    flags = []
    if parts != usual:
        flags.append(f"--{'trainer' if stage == 'adapter' else 'model.init_args'}.{key}={parts}")
    size = given.pop("batch_size", None)
    if size is not None or (stage != "adapter" and parts != usual):
        at_once = data["batch_size"] // (1 if stage == "adapter" else usual)
        at_once = at_once if size is None else _whole("batch_size", size)
        flags.append(f"--data.init_args.batch_size={at_once * (1 if stage == 'adapter' else parts)}")
    for name, (section, option) in COUNTED.items():
        in_batches = stage == "adapter" and name == "validation_interval"
        before, now = (1, 1) if in_batches else (usual, parts)
        value = given.pop(name, None)
        if value is not None or before != now:
            batches = recipe[section][option] * before if value is None else _whole(name, value)
            flags.append(f"--{section}.{option}={max(batches // now, 1)}")
    return flags


def _schedule(stage: Stage, given: dict[str, str]) -> list[str]:
    """The schedule as a whole where it is named; else the warm-up alone."""
    keys = [key for key in given if key.startswith(_SCHEDULE)]
    values = {key.removeprefix(_SCHEDULE): given.pop(key) for key in keys}
    names = [optimizer.replace("optimizer", "scheduler") for optimizer in OPTIMIZERS[stage]]
    if "name" not in values:
        if values.keys() - {"warmup_steps"}:
            raise ValueError(f"{', '.join(keys)}: give {_SCHEDULE}name as well, one of {', '.join(SCHEDULES)}")
        warmup = values.get("warmup_steps")
        return [] if warmup is None else [f"--model.init_args.{name}.init_args.warmup_steps={warmup}" for name in names]
    if values["name"] not in SCHEDULES:
        raise ValueError(f"{_SCHEDULE}name={values['name']}: expected {', '.join(SCHEDULES)}")
    path = SCHEDULES[values["name"]]
    arguments: dict[str, Any] = {}
    if values["name"] == "cosine_with_restarts":
        named = {"first_cycle_steps": "T_0", "cycle_mult": "T_mult", "min_lr": "eta_min"}
        arguments = {ours: float(values[old]) for old, ours in named.items() if old in values}
        arguments.update({key: int(arguments[key]) for key in ("T_0", "T_mult") if key in arguments})
    elif path is not None:
        arguments["warmup_steps"] = _whole("warmup_steps", values.get("warmup_steps", "0"), least=0)
        if values["name"] != "constant_with_warmup":
            arguments["min_factor"] = float(values.get("min_lr_ratio", 0))
    spec = json.dumps(None if path is None else {"class_path": path, "init_args": arguments})
    per_step = [] if stage == "adapter" else ["--model.init_args.scheduler_interval=step"]
    return [*(f"--model.init_args.{name}={spec}" for name in names), *per_step]


def _start(given: dict[str, str]) -> list[str]:
    """Going on with a run, or beginning with the weights of other stages."""
    flags = []
    resume = given.pop("checkpoint.resume_from", "null")
    if resume == "latest":
        flags.append("--ckpt_path=auto")
    elif not _is_null(resume):
        if not resume.endswith(".ckpt") and not any(Path(resume).glob("*.ckpt")):
            raise ValueError(
                f"checkpoint.resume_from={resume}: neither a checkpoint nor a run of ours; a file of the original goes "
                f"through `zoo convert miipher {resume} TARGET` first"
            )
        flags.append(f"--ckpt_path={resume}")
    weights = [given.pop(key, "null") for key in ("adapter_ckpt", "pretrained_gen")]
    if weights := [path for path in weights if not _is_null(path)]:
        flags.append(f"--init_from=[{','.join(weights)}]")
    return flags


def _extras(given: dict[str, str], notes: list[str]) -> list[str]:
    """W&B, EMA, data, and the factor of feature matching."""
    flags = []
    if is_true(given.pop("wandb.enabled", "false")):
        flags.append("--loggers=[wandb]")
        notes.append("W&B is offline unless --wandb.mode=online; send a run later by `wandb sync`")
    decay = given.pop("optim.ema_decay", given.pop("ema_decay", "null"))
    if not _is_null(decay):
        flags += ["--trainer.callbacks+=zoo.training.EMA", "--trainer.callbacks.modules=[generator]"]
        flags.append(f"--trainer.callbacks.decay={decay}")
    weight = given.pop("lambda_fm", None)
    if weight is not None:  # the original's feature matching holds a factor 2 that is a part of our weight
        flags += [f"--{WEIGHTS}.g/fm_{name}={2 * float(weight):g}" for name in ("mpd", "msd")]
    if Path(pattern := given.get("dataset.path_pattern", "null")).is_dir():
        flags.append(f"--data.init_args.root={given.pop('dataset.path_pattern')}")
    elif not _is_null(pattern):
        notes.append(
            f"no counterpart: dataset.path_pattern={given.pop('dataset.path_pattern')}: shards are unpacked once, then "
            "--data.init_args.root is the clean tree and --data.init_args.degraded the degraded one (docs/miipher.md)"
        )
    return flags


def _fragments(given: dict[str, str], environment: Mapping[str, str]) -> list[Path]:
    names = [name for name in ("fsdp", "deepspeed") if is_true(given.pop(f"accelerate.{name}.enabled", "false"))]
    distributed = is_true(given.pop("distributed.enabled", "false"))
    if not names and (distributed or max(old_calls.processes(environment)) > 1):
        names = ["ddp"]
    return [recipe_root() / "trainer" / f"{name}.yaml" for name in names]


def _options(stage: Stage, targets: Sequence[str], value: str) -> list[str]:
    if value[:1] == value[-1:] and value[:1] in ("'", '"'):
        value = value[1:-1]
    each = [(target, optimizer) for target in targets for optimizer in OPTIMIZERS[stage]]
    names = [target.format(optimizer=optimizer, backbone=BACKBONES[stage]) for target, optimizer in each]
    return [f"--{name}={value}" for name in dict.fromkeys(names)]


def _hint(key: str) -> str:
    for known, hint in WITHOUT_COUNTERPART.items():
        if key == known or (known.endswith(".") and key.startswith(known)):
            return hint
    raise ValueError(f"{key} is no key of this stage's original configuration; keys of `zoo fit` begin with --")


def _is_null(value: str) -> bool:
    return value in ("", "null", "None", "~")


def _whole(key: str, value: str, least: int = 1) -> int:
    if not value.isdigit() or int(value) < least:
        raise ValueError(f"{key}={value}: expected a whole number from {least}")
    return int(value)
