"""Every class, function and module that a dotted path reaches is refused as a component, or registered."""

import inspect
import pkgutil
import sys
from collections import Counter
from importlib.metadata import packages_distributions
from types import ModuleType
from typing import Any

from tests.harness import in_fork
from zoo.common import registry

ROOTS = ("zoo", "lightning", "torch.nn", "torchmetrics")
QUIET = ("open", "import", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
THROUGH = 3  # modules through which the content of a module that they import is reached, of hundreds


def list_reachable() -> list[str]:
    """List dotted paths below the roots and through what their modules import, one module further."""
    import lightning.pytorch
    import torchmetrics

    import zoo

    for package in (zoo, lightning.pytorch, torchmetrics):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                try:
                    __import__(module.name)
                except Exception:  # an extra that is not installed, or a module that serves another platform
                    continue
    paths: set[str] = set()
    reached: Counter[str] = Counter()
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and any(name == root or name.startswith(f"{root}.") for root in ROOTS):
            paths |= {f"{name}.{attribute}" for attribute in vars(module)}
            for attribute, value in vars(module).items():
                if isinstance(value, ModuleType):
                    reached[value.__name__] += 1
                    if reached[value.__name__] <= THROUGH:
                        paths |= {f"{name}.{attribute}.{inner}" for inner in vars(value)}
                elif inspect.isclass(value):
                    paths |= {f"{name}.{attribute}.{inner}" for inner in vars(value)}
    return sorted(paths)


def look_up_all() -> tuple[int, int, list[str]]:
    """Look up every reachable name; return the numbers of refused and registered ones, and what the lookups did."""
    paths = list_reachable()
    registered = set(registry.allowed_import_paths())
    for package in registry.PACKAGES:
        for name in registry.component_names(package):
            registry.get_class(name)
    installed = {*packages_distributions(), *sys.stdlib_module_names, *sys.modules}
    events: list[str] = []
    watching = True

    def note(event: str, args: tuple[Any, ...]) -> None:
        reads = event == "open" and isinstance(args[1], str) and not set(args[1]) & set("wax+")
        if watching and event in QUIET and not reads:
            if event != "import" or args[0].partition(".")[0] not in installed:
                events.append(f"{event} {args[:2]!r}")

    sys.dont_write_bytecode = True  # an import is no act
    sys.addaudithook(note)
    refused = 0
    for path in paths:
        try:
            registry.get_class(path)
            assert path in registered, path
        except ValueError as error:
            assert "\n" not in str(error), path
            refused += 1
    watching = False
    return refused, len(paths) - refused, events


def test_every_reachable_name_is_refused_or_registered() -> None:
    refused, registered, events = in_fork(look_up_all)
    assert events == []
    assert refused > 20_000 and 150 < registered < 1500
