"""The parser of the Trainer's commands, and a config as the text that it reads again."""

from __future__ import annotations

from typing import Any, NoReturn

import lightning as L
from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from zoo.parsing import fail
from zoo.training.precision import PRECISION_TYPE

KINDS = ("class_path", "model_type")  # where one of these changes, the arguments of the former kind go


class MergingConfigFile(ActionConfigFile):
    """`--config`, whose mappings (`backbone.config`) merge with those of earlier files key by key, as all else does."""

    @staticmethod
    def apply_config(parser: Any, cfg: Namespace, dest: str, value: Any) -> None:
        """Read a file into what the files before it gave."""
        before = cfg.clone()
        ActionConfigFile.apply_config(parser, cfg, dest, value)
        merged = _merged(before, cfg)
        for key in vars(cfg):
            setattr(cfg, key, getattr(merged, key))


def _merged(before: Any, after: Any) -> Any:
    """A value of a config with the keys of former mappings that it lacks."""
    if type(before) is not type(after) or not isinstance(after, Namespace | dict):
        return after
    old, new = (vars(value) if isinstance(value, Namespace) else value for value in (before, after))
    if any(old.get(kind) != new[kind] for kind in KINDS if kind in new):
        return after
    found = {key: _merged(old.get(key), value) for key, value in new.items()}
    return {**old, **found} if isinstance(after, dict) else Namespace(**found)


class ZooParser(LightningArgumentParser):
    """LightningCLI's parser with one-line errors and `trainer.precision: auto`."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong key or value in one line and exit with code 2."""
        fail(self.prog, message)

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an argument; config files merge."""
        if kwargs.get("action") is ActionConfigFile:
            kwargs["action"] = MergingConfigFile
        return super().add_argument(*args, **kwargs)

    def add_lightning_class_args(self, lightning_class: Any, nested_key: str, *args: Any, **kwargs: Any) -> list[str]:
        """Add the arguments of a class; a Trainer's precision may be auto."""
        if lightning_class is not L.Trainer:
            return super().add_lightning_class_args(lightning_class, nested_key, *args, **kwargs)
        settings: dict[str, Any] = {"fail_untyped": False, "instantiate": False, "sub_configs": True}
        added = self.add_class_arguments(lightning_class, nested_key, skip={"precision"}, **settings)
        about = "as Lightning's; auto tries some on the first batches and takes the fastest whose loss is float32's"
        self.add_argument(f"--{nested_key}.precision", type=PRECISION_TYPE, default=None, help=about)
        return added


def config_text(parser: LightningArgumentParser, config: Namespace) -> str:
    """A config as YAML that any of the four commands reads."""
    kept = config.clone()
    kept["trainer.default_root_dir"] = None
    kept["ckpt_path"] = None
    for key in ("config", "input", "output", "overwrite"):
        kept.pop(key, None)
    return parser.dump(kept, skip_none=False)
