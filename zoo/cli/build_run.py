"""`zoo.build`: a recipe as Python objects, by the parser of `zoo fit`."""

from __future__ import annotations

from collections.abc import Sequence

import lightning as L

from zoo.cli.log_filters import configure_logging, filter_warnings
from zoo.cli.trainer import ZooCLI, start_from_weights
from zoo.common.registry import allow_packages
from zoo.training.task import ZooTask


def build(
    recipe: str, overrides: Sequence[str] = (), allow_import: Sequence[str] = ()
) -> tuple[ZooTask, L.LightningDataModule, L.Trainer]:
    """Build what `zoo fit RECIPE OVERRIDES` trains; `trainer.fit(task, data)` trains it in a new run folder.

    Example: `task, data, trainer = zoo.build("flow/base", ["data.root=pics"])`. The seed of the recipe is set and the
    weights of `init_from` are loaded. `zoo fit --ckpt_path RUN` resumes such a run.

    Args:
        recipe: its name (`zoo list`) or a YAML file.
        overrides: options of `zoo fit`, as `KEY=VALUE` or `--KEY=VALUE`, and further recipes.
        allow_import: packages of your own whose registered classes may be named.

    Raises:
        ValueError: an unknown recipe or key, or a value that does not fit; the message names it.
    """
    filter_warnings()
    configure_logging()
    allow_packages(allow_import)
    cli = ZooCLI("fit", [recipe, *overrides])
    if cli.checkpoint is not None:
        raise ValueError("ckpt_path: build starts new runs; zoo fit --ckpt_path RUN resumes one")
    start_from_weights(cli)
    return cli.model, cli.datamodule, cli.trainer
