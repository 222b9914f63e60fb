"""The parser of the Trainer's commands, and a config as the text that it reads again."""

from __future__ import annotations

from typing import Any, NoReturn

import lightning as L
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from zoo.parsing import fail
from zoo.training.precision import PRECISION_TYPE


class ZooParser(LightningArgumentParser):
    """LightningCLI's parser with one-line errors and `trainer.precision: auto`."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong key or value in one line and exit with code 2."""
        fail(self.prog, message)

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
