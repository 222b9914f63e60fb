"""Mistakes that the sources show: unknown keys, classes and choices are answered before torch is imported.

What is found here is wrong for certain; all else is left to the parser, which knows types.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zoo.cli.names import find_recipe, listed, near, pairs
from zoo.common import registry
from zoo.common.options import CONFIG_OPTIONS, SETTINGS_SUFFIXES, with_values
from zoo.common.reading.signatures import Argument, arguments
from zoo.common.reading.text import safe_load

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
TRAINER = ("lightning.pytorch.trainer.trainer", "Trainer")
POSITIVE = {  # numbers that Lightning and the loaders divide by
    "accumulate_grad_batches", "batch_size", "check_val_every_n_epoch", "every_n_batches", "val_check_interval",
}  # fmt: skip
OWN = {"config", "c", "help", "h", "print_config", "seed_everything", "trainer", "model", "data", "ckpt_path"}


class WrongNameError(ValueError):
    """A name that nothing has, or a value that nothing takes."""

    exit_code = 2


class _Checker:
    """Knows which class stands where, so that a later file or option may change its arguments alone."""

    def __init__(self) -> None:
        self.sections = _sections()
        self.keys = {*OWN, *self.sections}
        self.classes: dict[str, str] = {}
        self.numbers: dict[str, tuple[Any, str]] = {}  # values of POSITIVE keys and the files that they are from

    def config(self, content: Mapping[str, Any], origin: str) -> None:
        """Check the keys of a file."""
        check_sections(content, origin)
        for key, value in content.items():
            if key in ("model", "data"):
                self._part(value, key, origin)
            else:
                self._section(key, value, origin)

    def _section(self, key: str, value: Any, origin: str) -> None:
        place = TRAINER if key == "trainer" else self.sections.get(key)
        known = arguments(*place) if place else None
        if place is None or known is None or not isinstance(value, Mapping):
            return
        for name, entry in value.items():
            argument = _known(f"{key}.{name}", str(name).removesuffix("+"), known, key, origin)
            self._number(f"{key}.{name}", entry, origin)
            _choice(f"{key}.{name}", entry, argument, origin)
            self._part(entry, f"{key}.{name}", origin)

    def _part(self, value: Any, key: str, origin: str) -> None:
        """Check what may be a class and its arguments, and what stands in them."""
        if isinstance(value, list):
            for number, entry in enumerate(value):
                self._part(entry, f"{key}.{number}", origin)
        if not isinstance(value, Mapping):
            return
        if isinstance(value.get("class_path"), str):
            self.classes[key] = _class(value["class_path"], key, origin)
        elif "init_args" not in value:
            for name, entry in value.items():
                self._part(entry, f"{key}.{name}", origin)
            return
        self._arguments(value.get("init_args"), key, origin)

    def _arguments(self, given: Any, key: str, origin: str) -> None:
        known = self._takes(key)
        for name, entry in given.items() if isinstance(given, Mapping) else ():
            place = f"{key}.init_args.{name}"
            if known is not None:
                argument = _known(place, str(name).removesuffix("+"), known, self.classes[key], origin)
                self._number(place, entry, origin)
                _choice(place, entry, argument, origin)
            self._part(entry, place, origin)

    def _takes(self, key: str) -> dict[str, Argument] | None:
        name = self.classes.get(key, "")
        module = registry.module_of(name)
        return None if module is None else arguments(module, name.rpartition(".")[2])

    def option(self, option: str, value: str | None) -> None:
        """Check an option of the command line, `--data.init_args.batch_size` or `--data.batch_size`."""
        path = option.removeprefix("--").removesuffix("+").split(".")
        if path[0] not in self.keys:
            sections = {"trainer", "model", "data", *(name for name, place in self.sections.items() if place)}
            heads = sorted(sections if len(path) > 1 else self.keys - {"c", "h"})
            known = [".".join([f"--{name}", *path[1:]]) for name in heads]
            raise WrongNameError(f"unknown option {option}{near(option, known)} (`--help all` shows every option)")
        given = _value(value)
        if path[0] not in ("model", "data"):
            if len(path) == 2:
                self._section(path[0], {path[1]: given}, "")
            return
        if len(path) == 1:
            self._part({"class_path": value} if value and "." in value and " " not in value else given, path[0], "")
            return
        self._descend(path[0], path[1:], given)

    def _descend(self, key: str, path: Sequence[str], value: Any) -> None:
        """Follow the keys of an option; `init_args` may be left out where a class stands."""
        if path[0] in CLASS_KEYS[1:]:
            path = path[1:]
        if not path or path[0] == "help":
            return
        if path[0] == "class_path":
            if isinstance(value, str):
                self.classes[key] = _class(value, key, "")
            return
        known = self._takes(key)
        if known is None:
            return
        place = f"{key}.init_args.{path[0]}"
        argument = _known(place, path[0], known, self.classes[key], "")
        if len(path) > 1:
            self._descend(place, path[1:], value)
        else:
            self._number(place, value, "")
            _choice(place, value, argument, "")
            self._part(value, place, "")

    def _number(self, place: str, value: Any, origin: str) -> None:
        """Note the value of a key that must be positive; an option wins over files wherever it stands."""
        is_option = self.numbers.get(place, (None, " "))[1] == ""
        if place.rpartition(".")[2] in POSITIVE and not (origin and is_option):
            self.numbers[place] = (value, origin)

    def check_numbers(self) -> None:
        """Refuse zero where something is divided by it."""
        for place, (value, origin) in self.numbers.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise WrongNameError(f"{origin}{place} is {value}; expected a number above 0")


def check_trainer_command(args: Sequence[str]) -> None:
    """Check the options of fit, validate or test and the files that they name.

    Args:
        args: after `zoo.cli.names.recipes_named`.

    Raises:
        WrongNameError: for a key, class or choice that nothing has, with the nearest; for a zero that is divided by.
        ConfigFileError: for a file that is no mapping, or holds a key twice.
        FileNotFoundError: for a file that is not there.
    """
    checker = _Checker()
    for option, value, _ in pairs(args):
        if option == "--ckpt_path" and value:
            run = Path(value)
            folder = run if run.is_dir() and run.suffix != ".ckpt" else run.parent
            with contextlib.suppress(ValueError, OSError):  # a run's own config may be of another version
                checker.config(_content(folder / "config.yaml"), f"{folder / 'config.yaml'}: ")
    for option, value, _ in pairs(args):
        if option in CONFIG_OPTIONS and value is not None:
            path = find_recipe(value)
            checker.config(_content(path), f"{path}: ")
        elif option.startswith("--"):
            as_file = Path(value) if value and value.endswith(SETTINGS_SUFFIXES) else None
            if as_file is not None and as_file.is_file():
                checker.config({option.removeprefix("--"): _content(as_file)}, f"{as_file}: ")
            else:
                checker.option(option, value)
    checker.check_numbers()


def check_sections(content: Mapping[str, Any], origin: str) -> None:
    """Refuse a key of a config that is no section, also one without content, which the parser would pass over.

    Args:
        content: of the file.
        origin: the file, for the message: "x.yaml: ".

    Raises:
        WrongNameError: with the nearest section.
    """
    keys = {*OWN, *_sections()}
    for key in content:
        if key not in keys:
            raise WrongNameError(f"{origin}unknown key {key}{near(str(key), keys)} (keys: {_names(keys)})")


def check_tool(name: str, function: str, skipped: Sequence[str], args: Sequence[str]) -> None:
    """Check the options of a tool, a function "module:function" whose arguments they are.

    Raises:
        WrongNameError: for an option that it has not, with the nearest.
    """
    module, _, attribute = function.partition(":")
    known = arguments(module, attribute)
    options = [f"--{each}" for each in known or () if each not in skipped] + ["--help", "-h"]
    for option, _, _ in pairs(args):
        if known is not None and option.startswith("--") and option.partition(".")[0].rstrip("+") not in options:
            raise WrongNameError(f"{name} has no option {option}{near(option, options)} (options: {listed(options)})")


def check_part(name: str, option: str, slot: Any, args: Sequence[str]) -> None:
    """Check the class that an option of a tool names, by its public or short name; see `registry.load_beside`.

    Raises:
        WrongNameError: for a name that no part in this slot has, with the nearest.
    """
    known = registry.load_beside(slot)
    for given, value, _ in pairs(args):
        if not value or given != f"--{option}" or not re.fullmatch(r"[A-Z]\w*|zoo\.[\w.]+", value):
            continue
        names = known if "." in value else [each.rpartition(".")[2] for each in known]
        if known and not registry.admitted() and value not in names:
            said = f"no part {value} fits here{near(value, names)} (parts: {listed(names)})"
            raise WrongNameError(f"{name} {given}: {said}")


def fit_apart(function: str, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a tool that trains, a function "module:function", into its own and those of `zoo fit`.

    Of its own an option given several times becomes a list. What neither has is left to `check_tool`, but for options
    with a dot, which are left to `check_trainer_command`.
    """
    module, _, attribute = function.partition(":")
    known = arguments(module, attribute) or {}
    kinds = {name: ast.unparse(each.annotation) if each.annotation else "" for name, each in known.items()}
    sections = _Checker().keys - known.keys()
    own: list[str] = []
    lists: dict[str, list[str]] = {}
    fit: list[str] = []
    for option, value, joined in pairs(with_values(list(args), [name for name in kinds if kinds[name] == "bool"])):
        name = option.lstrip("-").replace("-", "_")
        if option.startswith("--") and kinds.get(name, "").startswith("list") and value is not None:
            lists.setdefault(option, []).append(value)
            continue
        words = [f"{option}={value}"] if joined else [word for word in (option, value) if word]
        taken = not option or "." in name or (name in sections and name not in ("h", "help"))
        (fit if taken else own).extend(words)
    return [*own, *(f"{option}={json.dumps(values)}" for option, values in lists.items())], fit


def dotted_apart(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a tool into its own and the rest: options with a dot, and words of their own."""
    own: list[str] = []
    rest: list[str] = []
    for option, value, joined in pairs(args):
        words = [f"{option}={value}"] if joined else [word for word in (option, value) if word is not None and word]
        (rest if not option or "." in option else own).extend(words)
    return own, rest


@functools.cache
def _sections() -> dict[str, tuple[str, str] | None]:
    """Groups of options beside those of LightningCLI, with the class whose arguments they are, read from the source."""
    source = (Path(__file__).parent / "trainer.py").read_text(encoding="utf-8")
    added = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "add_arguments_to_parser"
    )
    found: dict[str, tuple[str, str] | None] = {}
    for call in ast.walk(added):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if call.func.attr == "add_argument":
            found[texts[0].removeprefix("--")] = None
        elif call.func.attr in ("add_lightning_class_args", "add_class_arguments") and isinstance(
            call.args[0], ast.Name
        ):
            found[texts[0]] = ("zoo.cli.trainer", call.args[0].id)
    return found


def _class(name: str, key: str, origin: str) -> str:
    """The public name of a class that a text names; one that nothing has is refused, a short one passes."""
    public = name
    package, _, attribute = public.rpartition(".")
    known = registry.names(package) if package in registry.PACKAGES else []
    if known and public not in known:
        raise WrongNameError(f"{origin}{key}.class_path: {package} has no part {attribute}{near(public, known)}")
    return public


def _known(place: str, name: str, known: Mapping[str, Argument], owner: str, origin: str) -> Argument:
    if name not in known:
        raise WrongNameError(f"{origin}unknown key {place}{near(name, known)} (keys of {owner}: {_names(known)})")
    return known[name]


def _names(known: Any) -> str:
    return listed(sorted(known))


def _choice(place: str, value: Any, argument: Argument, origin: str) -> None:
    if isinstance(value, str) and "${" not in value and argument.choices:
        choices = list(dict.fromkeys("null" if each is None else str(each) for each in argument.choices))
        if value not in choices:
            raise WrongNameError(f"{origin}{place} is {value!r}{near(value, choices)} (values: {', '.join(choices)})")
    if isinstance(value, str) and value.rpartition(".")[0] in registry.PACKAGES:
        _class(value, place, origin)


def _value(text: str | None) -> Any:
    with contextlib.suppress(ValueError, yaml.YAMLError):
        return safe_load(text or "")
    return text


def _content(path: Path) -> dict[str, Any]:
    from zoo.common.reading.configs import read_mapping  # imports OmegaConf, which help and tools need not wait for

    return read_mapping(path)
