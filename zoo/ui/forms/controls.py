"""The controls of the page: labels, kinds, and the config keys that they edit where a recipe has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "number", "text", "switch", "choice", "many"]
GROUPS = ("Training", "Performance", "What trains", "Protection", "Intervals")
CALLBACKS = "trainer.callbacks"
# Keys that every recipe has, with the values of a recipe that does not name them.
ALWAYS: dict[str, Any] = {
    "seed_everything": 1234,
    "trainer.max_steps": -1,
    "trainer.accumulate_grad_batches": 1,
    "trainer.gradient_clip_val": None,
    "trainer.precision": None,
    "trainer.devices": "auto",
    "trainer.val_check_interval": None,
    "trainer.log_every_n_steps": 50,
    "checkpoints.every_n_steps": 1000,
    "checkpoints.every_minutes": 30.0,
    "checkpoints.keep_last": 2,
}
LAYERS = ("global_encoder", "time_embed", "input_blocks", "middle_block", "output_blocks", "out", "global_fusion")


@dataclass(frozen=True)
class Control:
    """One control of the form.

    Args:
        kind: what it holds; "choice" offers `choices` and what its annotation lists.
        keys: dotted keys or globs of them; the first that the recipe has is edited, without any the control is hidden.
        choices: of "choice" and "many".
        info: in a few words; without it the help is the docstring's of the class that takes the key.
        low: smallest number that makes sense; None for no limit.
        high: largest.
    """

    label: str
    group: str
    kind: Kind
    keys: tuple[str, ...]
    choices: tuple[str, ...] = ()
    info: str = ""
    low: float | None = None
    high: float | None = None


_MODEL, _DATA = "model.init_args.", "data.init_args."
_GUARD = f"{CALLBACKS}.*Guard.init_args."
_MONITOR = f"{CALLBACKS}.LossMonitor.init_args."
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
CONTROLS = (
    Control("Steps", "Training", "int", ("trainer.max_steps",), info="batches; -1 for no limit", low=-1),
    Control("Batch size", "Training", "int", (f"{_DATA}batch_size",), info="per process", low=1),
    Control(
        "Gradient accumulation",
        "Training",
        "int",
        (f"{_MODEL}accumulate", "trainer.accumulate_grad_batches"),
        info="batches per optimizer step",
        low=1,
    ),
    Control(
        "Learning rate",
        "Training",
        "number",
        (f"{_MODEL}optimizer.init_args.lr", f"{_MODEL}optimizer_g.init_args.lr"),
        low=0,
    ),
    Control("Learning rate, discriminator", "Training", "number", (f"{_MODEL}optimizer_d.init_args.lr",), low=0),
    Control("Warm-up steps", "Training", "int", (f"{_MODEL}scheduler*.init_args.warmup_steps",), low=0),
    Control("Gradient clipping", "Training", "number", (f"{_MODEL}step.clip_g", "trainer.gradient_clip_val"), low=0),
    Control("Seed", "Training", "int", ("seed_everything",), low=0),
    Control("Loader processes", "Performance", "int", (f"{_DATA}num_workers",), low=0),
    Control("Precision", "Performance", "choice", ("trainer.precision",), _PRECISIONS),
    Control("Compile", "Performance", "switch", (f"{_MODEL}compile", "*.compile")),
    Control(
        "Compile mode",
        "Performance",
        "choice",
        ("*.compile_options.mode",),
        ("default", "reduce-overhead", "max-autotune"),
    ),
    Control("Compile the full graph", "Performance", "switch", ("*fullgraph", "*.full_graph")),
    Control("Gradient checkpointing", "Performance", "switch", ("*.checkpointing", "*.gradient_checkpointing")),
    Control("Cache of the data", "Performance", "choice", (f"{_DATA}cache_mode",), ("ram", "memmap")),
    Control("Devices", "Performance", "text", ("trainer.devices",), info="a number, or auto"),
    Control("Parallel", "Performance", "choice", (f"{_MODEL}parallel",), ("none", "dp")),
    Control(
        "Training mode",
        "What trains",
        "choice",
        (f"{_MODEL}trains",),
        ("full", "global_encoder", "unet_only", "custom"),
    ),
    Control("Layers (custom)", "What trains", "many", (f"{_MODEL}trains",), LAYERS, "used in the mode custom"),
    Control("Frozen parts", "What trains", "text", (f"{_MODEL}freeze",), info="a list: [encoder, mid]"),
    Control("Loss guard", "Protection", "switch", ("guard.on",), info="skips batches whose loss explodes"),
    Control(
        "Guard's action",
        "Protection",
        "choice",
        (f"{_GUARD}kind", f"{_GUARD}mode", f"{_GUARD}action"),
        ("skip", "reduce"),
    ),
    Control(
        "Explosion threshold",
        "Protection",
        "number",
        (f"{_GUARD}threshold", f"{_MONITOR}threshold", f"{_GUARD}factor"),
        low=0,
    ),
    Control(
        "Reduction of the learning rate",
        "Protection",
        "number",
        (f"{_GUARD}reduce_factor", f"{_MONITOR}factor"),
        low=0,
        high=1,
    ),
    Control("Guard's patience", "Protection", "int", (f"{_GUARD}patience",), info="bad batches until it stops", low=1),
    Control("Early stopping", "Protection", "switch", ("early.on",), info="ends when validations get no better"),
    Control(
        "Patience",
        "Protection",
        "int",
        (f"{CALLBACKS}.*EarlyStopping.init_args.patience",),
        info="validations without a better value",
        low=1,
    ),
    Control("Validation interval", "Intervals", "number", ("trainer.val_check_interval",), info="batches", low=0),
    Control("Log interval", "Intervals", "int", ("trainer.log_every_n_steps",), info="batches", low=1),
    Control("Checkpoint interval", "Intervals", "int", ("checkpoints.every_n_steps",), info="batches", low=1),
    Control("Checkpoint interval, minutes", "Intervals", "number", ("checkpoints.every_minutes",), low=0),
    Control("Checkpoints kept", "Intervals", "int", ("checkpoints.keep_last",), low=1),
    Control("Sounds and pictures kept", "Intervals", "int", (f"{_MODEL}media_items",), info="per validation", low=0),
)

GUARD_CLASS = "zoo.training.LossGuard"
EARLY_CLASS = "lightning.pytorch.callbacks.EarlyStopping"
# switch -> what the names of its classes end with, and the callback that the switch adds to a recipe without one
OPTIONAL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "guard.on": (
        ("Guard", "LossMonitor"),
        {
            "class_path": GUARD_CLASS,
            "init_args": {"action": "skip", "factor": 10.0, "patience": 10, "reduce_factor": 0.5},
        },
    ),
    "early.on": (("EarlyStopping",), {"class_path": EARLY_CLASS, "init_args": {"monitor": None, "patience": 10}}),
}
