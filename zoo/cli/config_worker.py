"""A process that parses the configs of trainings for the page: JSON lines on stdin and stdout, until stdin ends.

A line in is `{"files": [...], "changes": {...}}`: recipes in their order, and what is merged over them. A line out is
`{"config", "text", "arguments"}`: the complete config, as `config.yaml` holds it, and descriptions of the arguments of
its sections and classes; or `{"error"}`, the message of `zoo fit` for the same files.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import tempfile
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import docstring_parser
import lightning as L

from zoo.cli.recipes import TOP_LEVEL
from zoo.cli.trainer import ZooCLI
from zoo.common import registry
from zoo.common.configs import dump_yaml, load_yaml
from zoo.common.foreign_files import iterate_keys
from zoo.common.journal import format_error
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.loggers import WandbSettings
from zoo.training.callbacks.progress import ProgressBar
from zoo.training.callbacks.samples import Samples

SECTIONS = {
    "trainer": L.Trainer,
    "checkpoints": Checkpoints,
    "samples": Samples,
    "wandb": WandbSettings,
    "terminal": ProgressBar,
}


class ConfigOnly(ZooCLI):
    """The command line of fit, which stops when the config has been parsed."""

    def before_instantiate_classes(self) -> None:
        """Choose no run folder."""

    def instantiate_classes(self) -> None:
        """Build nothing."""


def main() -> None:
    """Answer line by line; what libraries print goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    registry.allow_packages(sys.argv[1:])
    for line in sys.stdin:
        lines.write(json.dumps(parse(**json.loads(line)), default=str) + "\n")
        lines.flush()


def parse(files: Sequence[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the command line of a training; returns the line out."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as edited:
        edited.write(dump_yaml(dict(changes)))
        edited.flush()
        try:
            cli = ConfigOnly("fit", [f"--config={file}" for file in [*files, *([edited.name] if changes else [])]])
            text = cli.config_text()
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, ValueError | SystemExit) else format_error(error)
            return {"error": " ".join(message.replace(f"{edited.name}: ", "").split())}
    config = load_yaml(text)
    return {"config": config, "text": text, "arguments": describe_config(config)}


def describe_config(config: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Describe the arguments of the sections and classes that a config names, by section or class, then by name."""
    classes: dict[str, Any] = dict(SECTIONS)
    for key, value in iterate_keys(config):
        if key.rpartition(".")[2] == "class_path" and isinstance(value, str):
            classes[value] = registry.get_class(value)
    top_level = {name: {"help": text, "type": "", "choices": []} for name, text in TOP_LEVEL.items()}
    return {"": top_level} | {name: describe_arguments(each) for name, each in classes.items()}


@cache
def describe_arguments(cls: type) -> dict[str, dict[str, Any]]:
    """Describe the arguments of a class: `help`, `type` and `choices` by name.

    Fields of an argument that is a dataclass follow as `argument.field`.
    """
    try:
        annotations = registry.constructor_annotations(cls)
    except (NameError, TypeError):  # annotations that only a type checker can evaluate
        annotations = {}
    documents = [doc for base in reversed(cls.__mro__) for doc in (base.__doc__, vars(base).get("__init__").__doc__)]
    texts = {name: text for doc in documents if doc for name, text in argument_texts(doc).items()}
    described: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys([*texts, *annotations]):
        annotation = annotations.get(name, "")
        described[name] = {
            "help": texts.get(name, ""),
            "type": inspect.formatannotation(annotation).replace("typing.", "").strip("'"),
            "choices": _literals(annotation),
        }
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            described |= {f"{name}.{key}": each for key, each in describe_arguments(annotation).items()}
    return described


def argument_texts(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument, in one line."""
    parameters = docstring_parser.parse(docstring).params
    names = [(name.strip(" *`"), each.description) for each in parameters for name in each.arg_name.split(",")]
    return {name: " ".join((text or "").split()) for name, text in names}


def _literals(annotation: Any) -> list[Any]:
    """List the values of the `Literal` that an annotation is, alone or with None."""
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return list(options)
    literals = [value for option in options for value in _literals(option)]
    return [*literals, None] if literals and len(options) == 2 and type(None) in options else []


if __name__ == "__main__":
    main()
