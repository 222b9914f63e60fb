"""The registry of parts: which classes recipes, checkpoints and exports may name, and by which names.

A package lists its public names in its `__init__.py`:

    __getattr__, __all__ = register_components(__name__, {"nets.unet": "UNet", "process.paths": "Cosine"})

`zoo.flow.UNet` is then the name of the part everywhere, wherever its file lies. Nothing else can be built: no function,
no class that a package merely imports, nothing of a package that is not admitted. What is admitted besides the zoo, the
command line (`--allow-import`) or the Python caller says, for the whole process, and nothing that stands in a file.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

# Packages of the zoo that register parts; nothing below the others (cli, ui, runs, …) can be named.
PACKAGES = tuple(f"zoo.{name}" for name in "audio audiosr ci_llm compressed_ad flow hifigan miipher training".split())

# Classes of other projects that a recipe may name; none of them runs a command. Of torch.nn: the modules defined there.
EXTERNAL_CLASSES = {
    "torch.optim": """Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD LBFGS Muon NAdam RAdam RMSprop Rprop SGD
        SparseAdam""",
    "torch.amp": "GradScaler",
    "torch.optim.lr_scheduler": """ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
        LinearLR MultiStepLR OneCycleLR PolynomialLR ReduceLROnPlateau StepLR""",
    "lightning.pytorch.callbacks": """DeviceStatsMonitor EarlyStopping GradientAccumulationScheduler
        LearningRateMonitor ModelCheckpoint ModelPruning ModelSummary OnExceptionCheckpoint RichModelSummary
        RichProgressBar StochasticWeightAveraging TQDMProgressBar Timer""",
    "lightning.pytorch.loggers": "CSVLogger CometLogger MLFlowLogger NeptuneLogger TensorBoardLogger WandbLogger",
    "lightning.pytorch.strategies": "DDPStrategy SingleDeviceStrategy",
    "lightning.pytorch.profilers": "AdvancedProfiler PassThroughProfiler PyTorchProfiler SimpleProfiler",
    "lightning.pytorch.plugins": """BitsandbytesPrecision DoublePrecision HalfPrecision MixedPrecision
        TransformerEnginePrecision""",
    "lightning.pytorch.plugins.environments": """KubeflowEnvironment LSFEnvironment LightningEnvironment MPIEnvironment
        SLURMEnvironment TorchElasticEnvironment""",
}

_modules: dict[str, dict[str, str]] = {}  # package -> public name -> module
_admitted: list[str] = []


def register_components(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Register a package's parts and base classes.

    Args:
        package: its dotted name, `__name__` in its `__init__.py`.
        modules: module below the package ("" for the package itself) -> names of its classes, separated by spaces.

    Returns:
        `__getattr__` and `__all__` of the package: a name is imported on its first use.

    Raises:
        ValueError: when a name is listed twice.
    """
    places: dict[str, str] = {}
    for module, names in modules.items():
        for name in names.split():
            if name in places:
                raise ValueError(f"{package}: {name} is listed twice, in {places[name]} and {module}")
            places[name] = f"{package}.{module}" if module else package
    _modules[package] = places

    def attribute(name: str) -> Any:
        if places.get(name, package) == package:  # its own are there already
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return attribute, sorted(places)


def allow_packages(packages: Sequence[str]) -> None:
    """Let this process build the registered parts of the user's own packages, too.

    Args:
        packages: names of packages that register their parts with `public`; a package admits those below it.

    Raises:
        ValueError: for a name that is no package's.
    """
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise ValueError(f"--allow-import {package}: expected the dotted name of a package")
        if package not in _admitted:
            _admitted.append(package)


def allowed_packages() -> tuple[str, ...]:
    """The packages admitted besides the zoo's."""
    return tuple(_admitted)


def package_of(cls: type) -> str:
    """The package that a class belongs to: the one that registers parts, else that of its module."""
    module = cls.__module__
    own = [package for package in _modules if f"{module}.".startswith(f"{package}.")]
    return max(own, key=len, default=module.rpartition(".")[0])


def get_class(name: str, base: Any = object) -> type:
    """The class of a public name; the only way from a text to a class.

    Args:
        name: as a file or a command line gives it, `zoo.flow.UNet`.
        base: class or annotation of the slot it is for.

    Returns:
        The class.

    Raises:
        ValueError: when nothing of that name is registered, or it does not fit the slot.
    """
    found = _registered(name)
    if not fits_annotation(found, base):
        expected = " or ".join(sorted(_title(each) for each in _classes(base))) or "a plain value"
        raise ValueError(f"{name} does not fit here: expected {expected}")
    return found


def get_function(path: str) -> Any:
    """A class or function of an admitted package by its dotted path, for slots whose values are no parts of the zoo.

    Raises:
        ValueError: when its package is not admitted, or it is not defined there.
    """
    module, _, attribute = path.rpartition(".")
    homes = [package for package in _admitted if path.startswith(f"{package}.")]
    if not homes:
        raise ValueError(f"{path} belongs to no admitted package: --allow-import PACKAGE admits those of yours")
    found = getattr(importlib.import_module(module), attribute, None)
    if not callable(found) or not any(f"{found.__module__}.".startswith(f"{package}.") for package in homes):
        raise ValueError(f"{path} is no class or function that {homes[0]} defines")
    return found


def public_name(cls: type) -> str:
    """The name under which a class is registered, its dotted path where it is not."""
    return public_path(f"{cls.__module__}.{cls.__qualname__}")


def public_path(path: str) -> str:
    """The public name of a registered class that stands at a dotted path; any other path as it is."""
    module, _, attribute = path.rpartition(".")
    package = _owner(path)
    listed = (_table(package) if package else None) or {}
    return f"{package}.{attribute}" if listed.get(attribute) == module else path


def component_names(package: str) -> list[str]:
    """The public names of a package, `zoo.flow.UNet` and the like."""
    return [f"{package}.{name}" for name in _table(package) or ()]


def defining_module(name: str) -> str | None:
    """The module that defines a part of this public name, which is not imported; None for a name of none."""
    package, _, attribute = name.rpartition(".")
    return (_table(package) or {}).get(attribute) if package in (*PACKAGES, *_admitted) else None


def allowed_import_paths() -> list[str]:
    """Every name and every defining path of what may be built now: the import policy of the command line's parser."""
    found: list[str] = []
    for package in (*PACKAGES, *_admitted):
        for name, module in (_table(package) or {}).items():
            found += [f"{package}.{name}", f"{module}.{name}"]
    for package, listed in {
        **{key: value.split() for key, value in EXTERNAL_CLASSES.items()},
        "torch.nn": _layers(),
    }.items():
        for name in listed:
            cls = getattr(importlib.import_module(package), name, None)
            if cls is not None:
                found += [f"{package}.{name}", f"{cls.__module__}.{cls.__qualname__}"]
    return list(dict.fromkeys(found))


def fits_annotation(cls: type, slot: Any) -> bool:
    """Whether a class may stand in a slot with this annotation; Any takes no class, `object` takes all."""
    return slot is object or any(issubclass(cls, each) for each in _classes(slot))


def accepts_only_components(slot: Any) -> bool:
    """Whether nothing but a part, or None, may stand in a slot with this annotation."""
    options = typing.get_args(slot) if typing.get_origin(slot) in (typing.Union, types.UnionType) else (slot,)
    return all(option is type(None) or any(option is each for each in _classes(option)) for option in options)


def import_candidates(slot: Any) -> list[str]:
    """The parts that fit a slot and lie in the folder of its class, imported: a parser knows their short names then."""
    found = []
    for cls in _classes(slot):
        folder, package = cls.__module__.rpartition(".")[0], _owner(cls.__module__)
        listed = (_table(package) if package else None) or {}
        beside = [f"{package}.{name}" for name, module in listed.items() if module.rpartition(".")[0] == folder]
        found += [
            name for name in beside if fits_annotation(part := _registered(name), slot) and not inspect.isabstract(part)
        ]
    return found


def constructor_annotations(cls: type) -> dict[str, Any]:
    """The annotations of a class's constructor arguments, evaluated."""
    return {name: hint for name, hint in _hints(cls).items() if name != "return"}


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Annotations of the constructor, and of those of base classes that it hands its keywords on to."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            found = {**typing.get_type_hints(vars(base)["__init__"]), **found}
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                break
    return found


def _classes(annotation: Any) -> Iterator[type]:
    """The classes that an annotation names, those a callable returns included, plain types left out."""
    origin = typing.get_origin(annotation)
    if origin is Callable:
        yield from _classes((typing.get_args(annotation) or (None,))[-1])
    elif origin is not None and origin is not typing.Literal:
        for argument in typing.get_args(annotation):
            yield from _classes(argument)
    elif isinstance(annotation, type) and annotation.__module__ not in ("builtins", "typing", "pathlib"):
        yield annotation


def _title(cls: type) -> str:
    return f"a {public_name(cls)}"


def is_component(name: str) -> bool:
    """Whether a name stands for a part of the zoo or of an admitted package; the part's module is not imported."""
    package, _, attribute = name.rpartition(".")
    return package == _owner(name) and attribute in (_table(package) or {})


def _listed_names(name: str) -> tuple[str, Mapping[str, str]]:
    """The registering package that a name belongs to, "" without one, and its names with their modules."""
    package = name.rpartition(".")[0]
    if package in EXTERNAL_CLASSES:
        return package, dict.fromkeys(EXTERNAL_CLASSES[package].split(), package)
    package = _owner(name) or ""
    return package, (_table(package) if package else None) or {}


def _registered(name: str) -> type:
    package, listed = _listed_names(name)
    attribute = name.rpartition(".")[2]
    if name == f"torch.nn.{attribute}":
        package, listed = "torch.nn", dict.fromkeys(_layers(), "torch.nn")
    if not package:
        raise ValueError(f"{name} is no part of the zoo; --allow-import PACKAGE admits those of a package of yours")
    if name != f"{package}.{attribute}" or attribute not in listed:
        near = difflib.get_close_matches(attribute, listed, n=3, cutoff=0.5) or sorted(listed)[:3]
        raise ValueError(f"{package} registers no part {name!r}; nearest: {', '.join(near) or 'it registers none'}")
    found = getattr(importlib.import_module(listed[attribute]), attribute, None)
    home = package if package in _modules else package.partition(".")[0]
    if not isinstance(found, type) or not f"{found.__module__}.".startswith(f"{home}."):
        raise ValueError(f"{name} is no class that {home} defines")
    return found


@cache
def _layers() -> list[str]:
    """The modules that torch.nn defines."""
    found = vars(importlib.import_module("torch.nn"))
    classes = {name: value for name, value in found.items() if isinstance(value, type)}
    return [
        name
        for name, value in classes.items()
        if issubclass(value, found["Module"]) and value.__module__.startswith("torch.nn.modules.")
    ]


def _owner(name: str) -> str | None:
    """The registering package whose part a name may be: the longest admitted one that it begins with."""
    return max((each for each in (*PACKAGES, *_admitted) if name.startswith(f"{each}.")), key=len, default=None)


def _table(package: str) -> dict[str, str] | None:
    """The public names of a package with their modules; None for a package that registers nothing."""
    if package not in _modules:
        importlib.import_module(package)
    return _modules.get(package)
