"""The registry of components: which classes recipes, checkpoints and exports may name, and by which names.

A package lists its public names in its `__init__.py` by `register`; nothing else can be built. The command
line (`--allow-import`) or the Python caller decides which packages are allowed besides the zoo's, never a file.
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

# Packages of the zoo that register components; nothing below the others (cli, ui, runs, …) can be named.
PACKAGES = tuple(
    f"zoo.{name}" for name in "audio audiosr blocks ci_llm compressed_ad flow hifigan miipher training".split()
)

# Classes of other projects that a recipe may name; none of them runs a command. Of torch.nn: the modules defined there.
EXTERNAL_CLASSES = {
    "torch.optim": """Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD LBFGS Muon NAdam RAdam RMSprop Rprop SGD
        SparseAdam""",
    "torch.amp": "GradScaler",
    "torch.optim.lr_scheduler": """ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
        LinearLR MultiStepLR OneCycleLR PolynomialLR StepLR""",
    "lightning.pytorch.callbacks": """DeviceStatsMonitor EarlyStopping LearningRateMonitor
        ModelCheckpoint ModelPruning ModelSummary OnExceptionCheckpoint RichModelSummary
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
_allowed: list[str] = []


def register(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Register the classes of a package that recipes, checkpoints and the command line may name.

    In its `__init__.py`: `__getattr__, __dir__, __all__ = zoo.register(__name__, {"nets.unet": "UNet"})`. A recipe
    names such a class as `package.UNet`; `--allow-import PACKAGE` admits a package of your own.

    Args:
        package: its dotted name, `__name__` in its `__init__.py`.
        modules: module below the package ("" for the package itself) -> names of its classes, separated by spaces.

    Raises:
        ValueError: a name is listed twice.
    """
    paths: dict[str, str] = {}
    for module, names in modules.items():
        for name in names.split():
            if name in paths:
                raise ValueError(f"{package}: {name} is listed twice, in {paths[name]} and {module}")
            paths[name] = f"{package}.{module}" if module else package
    _modules[package] = paths

    def attribute(name: str) -> Any:
        if paths.get(name, package) == package:  # its own are there already
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(paths[name]), name)

    return attribute, lambda: sorted(paths), sorted(paths)


def allow_packages(packages: Sequence[str]) -> None:
    """Let this process build the registered components of the user's packages, and of those below them, too."""
    for package in packages:
        if not all(word.isidentifier() for word in package.split(".")):
            raise ValueError(f"--allow-import {package}: expected the dotted name of a package")
        if package not in _allowed:
            _allowed.append(package)


def allowed_packages() -> tuple[str, ...]:
    """Return the packages allowed besides the zoo's."""
    return tuple(_allowed)


def import_options() -> list[str]:
    """Return the options of a command line that allow the same packages as this process."""
    return [f"--allow-import={package}" for package in _allowed]


def get_class(name: str, base: Any = object) -> type:
    """Return the class of a public name, `zoo.flow.UNet`; the only way from a text to a class.

    Raises:
        ValueError: when no class of that name is registered, or it does not fit `base`, a class or annotation.
    """
    if not isinstance(name, str):
        raise ValueError(f"class_path: expected the name of a class, found {name!r:.60}")
    module, _, attribute = name.rpartition(".")
    is_external = module in (*EXTERNAL_CLASSES, "torch.nn")
    package = module if is_external else _owner(name)
    if package is None:
        raise ValueError(f"{name} is no part of the zoo; --allow-import PACKAGE admits those of a package of yours")
    listed = dict.fromkeys(_external_names(module), module) if is_external else _table(package)
    if module != package or attribute not in listed:
        nearest = difflib.get_close_matches(attribute, listed, n=3, cutoff=0.5) or sorted(listed)[:3]
        reason = f"{package} registers no class {name!r}" + (f"; nearest: {', '.join(nearest)}" if nearest else "")
        if package in _allowed:
            call = f"""zoo.register(__name__, {{"{module[len(package) + 1 :]}": "{attribute}"}})"""
            reason += f"; to register it: `import zoo; __getattr__, __dir__, __all__ = {call}` in {package}/__init__.py"
        raise ValueError(reason)
    cls = getattr(importlib.import_module(listed[attribute]), attribute, None)
    home = package.partition(".")[0] if is_external else package
    if not isinstance(cls, type) or not f"{cls.__module__}.".startswith(f"{home}."):
        raise ValueError(f"{name} is no class that {home} defines")
    if not _fits(cls, base):
        expected = " or ".join(sorted(f"a {public_name(each)}" for each in _classes(base))) or "a plain value"
        raise ValueError(f"{name} does not fit here: expected {expected}")
    return cls


def get_function(path: str) -> Any:
    """Return what an allowed package defines at a dotted path, for arguments that are no components, or ValueError."""
    module, _, attribute = path.rpartition(".")
    homes = [package for package in _allowed if path.startswith(f"{package}.")]
    if not homes:
        raise ValueError(f"{path} belongs to no admitted package: --allow-import PACKAGE admits those of yours")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function) or not any(f"{function.__module__}.".startswith(f"{package}.") for package in homes):
        raise ValueError(f"{path} is no class or function that {homes[0]} defines")
    return function


def public_name(cls: type) -> str:
    """Return the name under which a class is registered, its dotted path where it is not."""
    return public_path(f"{cls.__module__}.{cls.__qualname__}")


def public_path(path: str) -> str:
    """Return the public name of a registered class that stands at a dotted path; any other path as it is."""
    module, _, attribute = path.rpartition(".")
    package = _owner(path)
    return f"{package}.{attribute}" if package and _table(package).get(attribute) == module else path


def package_of(cls: type) -> str:
    """Return the package that registers components of a class's module, else that of its module."""
    module = cls.__module__
    packages = [package for package in _modules if f"{module}.".startswith(f"{package}.")]
    return max(packages, key=len, default=module.rpartition(".")[0])


def component_names(package: str) -> list[str]:
    """List the public names of a package, `zoo.flow.UNet` and the like."""
    return [f"{package}.{name}" for name in _table(package)]


def defining_module(name: str) -> str | None:
    """Return the module that defines the component of a public name, without importing it; None for another name."""
    package, _, attribute = name.rpartition(".")
    return _table(package).get(attribute) if package in (*PACKAGES, *_allowed) else None


def allowed_import_paths() -> list[str]:
    """List every name and every defining path of what may be built now: the import policy of the parser."""
    paths: list[str] = []
    for package in (*PACKAGES, *_allowed):
        for name, module in _table(package).items():
            paths += [f"{package}.{name}", f"{module}.{name}"]
    for package in (*EXTERNAL_CLASSES, "torch.nn"):
        for name in _external_names(package):
            cls = getattr(importlib.import_module(package), name, None)
            if cls is not None:
                paths += [f"{package}.{name}", f"{cls.__module__}.{cls.__qualname__}"]
    return list(dict.fromkeys(paths))


def accepts_only_components(annotation: Any) -> bool:
    """Tell whether an argument with this annotation takes nothing but a component, or None."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if is_union else (annotation,)
    return all(option is type(None) or any(option is each for each in _classes(option)) for option in options)


def import_candidates(annotation: Any) -> list[str]:
    """Import the components that fit an argument and lie next to its class: a parser knows their short names then."""
    names: list[str] = []
    for cls in _classes(annotation):
        folder, package = cls.__module__.rpartition(".")[0], _owner(cls.__module__)
        for name, module in _table(package).items() if package else ():
            if module.rpartition(".")[0] == folder:
                part = get_class(f"{package}.{name}")
                names += [f"{package}.{name}"] * (_fits(part, annotation) and not inspect.isabstract(part))
    return names


def constructor_annotations(cls: type) -> dict[str, Any]:
    """Evaluate the annotations of a constructor's arguments, and of those that it hands on to base classes."""
    annotations: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            annotations = {**typing.get_type_hints(vars(base)["__init__"]), **annotations}
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                break
    annotations.pop("return", None)
    return annotations


def _fits(cls: type, annotation: Any) -> bool:
    """Tell whether an argument takes a class; Any takes none, `object` takes all."""
    return annotation is object or any(issubclass(cls, each) for each in _classes(annotation))


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation names, those a callable returns included, plain types left out."""
    origin = typing.get_origin(annotation)
    if origin is Callable:
        yield from _classes((typing.get_args(annotation) or (None,))[-1])
    elif origin is not None and origin is not typing.Literal:
        for argument in typing.get_args(annotation):
            yield from _classes(argument)
    elif isinstance(annotation, type) and annotation.__module__ not in ("builtins", "typing", "pathlib"):
        yield annotation


@cache
def _external_names(package: str) -> list[str]:
    """List what may be named of a package of another project."""
    if package != "torch.nn":
        return EXTERNAL_CLASSES[package].split()
    from torch import nn

    classes = {name: value for name, value in vars(nn).items() if isinstance(value, type)}
    return [
        name
        for name, value in classes.items()
        if issubclass(value, nn.Module) and value.__module__.startswith("torch.nn.modules.")
    ]


def _owner(name: str) -> str | None:
    """Return the registering package whose component a name may be: the longest allowed one that it begins with."""
    return max((each for each in (*PACKAGES, *_allowed) if name.startswith(f"{each}.")), key=len, default=None)


def _table(package: str) -> Mapping[str, str]:
    """Return the public names of a package with their modules."""
    if package not in _modules:
        importlib.import_module(package)
    return _modules.get(package, {})
