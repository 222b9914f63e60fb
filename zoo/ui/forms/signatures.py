"""What classes and functions take, read from their sources: a typing error is answered without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

NO_MORE = ("LightningModule", "LightningDataModule", "Callback", "object", "ABC", "Protocol")  # take no arguments


_ENTRY = re.compile(r"(\w+)(?: \([^)]*\))?: *(.*)")


class Argument(NamedTuple):
    """An argument of a class or function, with the module where its annotation stands."""

    name: str
    module: str
    annotation: ast.expr | None

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The values that it takes, where its annotation lists them; reads the sources that this needs."""
        return _choices(self.module, self.annotation)


class _Found(NamedTuple):
    module: str
    node: ast.stmt


@cache
def arguments(module: str, name: str) -> dict[str, Argument] | None:
    """The arguments of a class's constructor, those that go on to its base classes included, or of a function.

    Returns:
        By name; None where the sources do not tell.
    """
    found = _find(module, name)
    if found is None:
        return None
    if isinstance(found.node, ast.ClassDef):
        return _of_class(found.module, found.node)
    return _parameters(found.module, found.node.args) if isinstance(found.node, ast.FunctionDef) else None


@cache
def described(module: str, name: str) -> dict[str, str]:
    """What docstrings say of a class's or function's arguments (Google style), base classes included, by name."""
    found = _find(module, name)
    if found is None or not isinstance(found.node, ast.ClassDef | ast.FunctionDef):
        return {}
    said: dict[str, str] = {}
    if isinstance(found.node, ast.ClassDef):
        for base in found.node.bases:
            said |= {} if _last(base) in NO_MORE else described(*_named(found.module, base))
        inits = [each for each in found.node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        for init in inits:
            said |= _args_section(ast.get_docstring(init) or "")
    return said | _args_section(ast.get_docstring(found.node) or "")


def _args_section(docstring: str) -> dict[str, str]:
    """The entries of a docstring's `Args:`."""
    _, _, rest = docstring.partition("Args:\n")
    said: dict[str, str] = {}
    depth = len(rest) - len(rest.lstrip(" "))
    name = ""
    for line in rest.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and indent < depth:
            break
        begun = _ENTRY.match(line.strip()) if indent == depth else None
        if begun:
            name = begun[1]
            said[name] = begun[2]
        elif name and line.strip():
            said[name] += f" {line.strip()}"
        elif name:  # a paragraph of its own is beyond a line of help
            name = ""
    return said


def _of_class(module: str, node: ast.ClassDef) -> dict[str, Argument] | None:
    init = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    if init is None and any(_last(decorator) == "dataclass" for decorator in node.decorator_list):
        fields = {_last(each.target): each.annotation for each in node.body if isinstance(each, ast.AnnAssign)}
        return {name: Argument(name, module, fields[name]) for name in fields if not name.startswith("_")}
    own = {} if init is None else _parameters(module, init.args)
    if init is not None and init.args.kwarg is None:
        return own
    if not node.bases:
        return own if init is None else None
    for base in node.bases:
        inherited = {} if _last(base) in NO_MORE else arguments(*_named(module, base))
        if inherited is None:
            return None
        own = {**inherited, **own}
    return own


def _parameters(module: str, args: ast.arguments) -> dict[str, Argument]:
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return {each.arg: Argument(each.arg, module, each.annotation) for each in given if each.arg != "self"}


def _choices(module: str, annotation: ast.expr | None) -> tuple[Any, ...] | None:
    """The values of `Literal[...]`, also by another name or with None; None for any other annotation."""
    if isinstance(annotation, ast.Constant):
        return (None,) if annotation.value is None else None
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return _together(module, [annotation.left, annotation.right])
    if isinstance(annotation, ast.Subscript):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        kind = _last(annotation.value)
        if kind == "Literal":
            return tuple(each.value for each in inner if isinstance(each, ast.Constant))
        if kind in ("Union", "Optional"):
            return _together(module, [*inner, *([ast.Constant(None)] if kind == "Optional" else [])])
    if isinstance(annotation, ast.Name):
        found = _find(module, annotation.id)
        if found is not None and isinstance(found.node, ast.Assign | ast.AnnAssign):
            return _choices(found.module, found.node.value)
    return None


def _together(module: str, annotations: list[ast.expr]) -> tuple[Any, ...] | None:
    found = [_choices(module, each) for each in annotations]
    return None if None in found else tuple(value for values in found for value in values or ())


def _find(module: str, name: str) -> _Found | None:
    """A definition and the module where it stands, through imports."""
    for _ in range(10):  # imports of imports
        tree = _tree(module)
        if tree is None:
            return None
        origin = None
        for node in _statements(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return _Found(module, node)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return _Found(module, node)
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for each in node.names:
                    if (each.asname or each.name) == name:
                        origin = (node.module, each.name)
        if origin is None:
            return None
        module, name = origin
    return None


def _named(module: str, base: ast.expr) -> tuple[str, str]:
    """Where to look for a base class: a module, "" where the sources do not tell it, and a name in it."""
    if not isinstance(base, ast.Attribute):
        return module, _last(base)
    owner, tree = ast.unparse(base.value), _tree(module)
    for node in () if tree is None else _statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for each in node.names:
                if (each.asname or each.name) == owner:
                    return f"{package}{each.name}", base.attr
    return "", base.attr


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of the module, and those under its `if TYPE_CHECKING:`."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


@cache
def _tree(module: str) -> ast.Module | None:
    """A module's source; packages above it are not imported, but for the first."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(spec.submodule_search_locations[0]).joinpath(*rest)
    file = place.with_suffix(".py") if rest and place.with_suffix(".py").is_file() else place / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def _last(node: ast.AST) -> str:
    """`Task` of `Task`, `zoo.Task`, `Task[int]` or `Task()`."""
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
