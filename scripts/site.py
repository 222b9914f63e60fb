"""A hook of mkdocs: pages made from README, changelog, registry, recipes and commands, so that they cannot lag behind.

`mkdocs build --strict` runs it; see mkdocs.yml. Nothing is imported that needs torch.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from zoo.cli.helps import TRAINER_COMMANDS
from zoo.cli.main import docstring, find_tools
from zoo.cli.names import FRAGMENTS, Recipe, recipes
from zoo.common import registry
from zoo.common.systems import systems
from zoo.ui.forms.explain import explain
from zoo.ui.forms.recipes import comment_of
from zoo.ui.forms.values import flatten

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SOUND = re.compile(r'<a href="([^"]+\.mp3)">([^<]*)</a>')
_ANIMATION = re.compile(r'<img ([^>]*)src="([^"]+)\.gif"([^>]*)>')
# for callers in Python who name no part: what `import zoo` gives, and how a package registers parts of its own
CALLED = {"zoo.load": "zoo.runs.load.load", "zoo.common.registry.public": "zoo.common.registry.public"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"index.md": _top("README.md"), "changelog.md": _top("CHANGELOG.md")}
    pages["reference/commands.md"] = _commands()
    pages["reference/zoo.md"] = "\n".join(["# zoo", "", "From Python.", "", *_entries(CALLED)])
    for package in registry.PACKAGES:
        pages[f"reference/{package.rpartition('.')[2]}.md"] = _parts(package)
    listed = recipes()
    for name, title in _recipe_pages():
        short, _, about = title.partition(":")
        chosen = [each for each in listed if each.name.partition("/")[0] == name]
        lines = [f"# {short}: recipes", "", about.strip(), "", *(line for each in chosen for line in _recipe(each))]
        pages[f"recipes/{name}.md"] = "\n".join(lines)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the made pages into the navigation."""
    assert config.nav is not None
    titles = dict(_recipe_pages())
    made = [{title.partition(":")[0]: f"recipes/{name}.md"} for name, title in titles.items()]
    parts = [{package: f"reference/{package.rpartition('.')[2]}.md"} for package in registry.PACKAGES]
    config.nav[3:3] = [
        {"Recipes": made},
        {"Reference": [{"Commands": "reference/commands.md"}, {"zoo": "reference/zoo.md"}, *parts]},
    ]
    return config


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Name files of the repository that are no pages, in place of a link that leads nowhere."""
    return _LINK.sub(_page_link, markdown)


def on_page_content(html: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Make players of links to sounds; who asks for no motion sees an animation's last image, the PNG beside it."""
    html = _SOUND.sub(r'<audio controls preload="none" src="\1" aria-label="\2"><a href="\1">\2</a></audio>', html)
    still = '<source media="(prefers-reduced-motion: reduce)" srcset="\\2.png">'
    return _ANIMATION.sub(rf'<picture>{still}<img \1src="\2.gif"\3></picture>', html)


def _page_link(match: re.Match[str]) -> str:
    mark, text, target = match.groups()
    return (
        match[0] if mark or not target.startswith("../") or "/" not in target else f"{text} (`{target.lstrip('./')}`)"
    )


def _top(name: str) -> str:
    """A file of the repository's top as a page: links that it has into docs/ lead from here, others are named."""

    def moved(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if target.startswith(("http", "#")):
            return match[0]
        if target.startswith("docs/"):
            return f"{mark}[{text}]({target.removeprefix('docs/')})"
        return f"[{text}](changelog.md)" if target == "CHANGELOG.md" else f"{text} (`{target}`)"

    return _LINK.sub(moved, (ROOT / name).read_text(encoding="utf-8"))


def _recipe_pages() -> list[tuple[str, str]]:
    return [*((system.name, system.title) for system in systems()), (FRAGMENTS, "Settings of the trainer")]


def _commands() -> str:
    lines = ["# Commands", "", "`zoo COMMAND --help` tells the same at the terminal.", ""]
    for name, about in TRAINER_COMMANDS.items():
        lines += [f"## zoo {name}", "", about[:1].upper() + about[1:], ""]
    for name, tool in sorted(find_tools().items()):
        lines += [f"## zoo {name}", "", _plain(docstring(tool)), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A docstring's first part as text and its arguments as a table."""
    about, _, rest = text.partition("\n    Args:\n")
    arguments = re.findall(r"^ {8}(\*?\w+): (.*(?:\n {12}.*)*)", rest.partition("\n\n")[0], re.MULTILINE)
    rows = [f"| `{name.lstrip('*')}` | {_cell(' '.join(said.split()))} |" for name, said in arguments]
    table = ["", "| argument | |", "|---|---|", *rows] if rows else []
    return "\n".join([inspect.cleandoc(about).strip(), *table])


def _parts(package: str) -> str:
    importlib.import_module(package)
    places = {name: f"{registry.module_of(name)}.{name.rpartition('.')[2]}" for name in sorted(registry.names(package))}
    return "\n".join([f"# {package}", "", inspect.getdoc(sys.modules[package]) or "", "", *_entries(places)])


def _entries(places: Mapping[str, str]) -> list[str]:
    """What mkdocstrings is to show under each name, by the path of its definition."""
    return [
        line
        for name, place in places.items()
        for line in (f"::: {place}", "    options:", f"      heading: {name}", "")
    ]


def _recipe(recipe: Recipe) -> list[str]:
    values = flatten(yaml.safe_load(recipe.path.read_text(encoding="utf-8")) or {})
    lines = [f"## {recipe.name}", "", comment_of(recipe.path), "", "| key | default | meaning |", "|---|---|---|"]
    for key, value in values.items():
        shown = json.dumps(value, ensure_ascii=False)
        lines.append(f"| `{key}` | `{_cell(shown)}` | {_cell(explain(values, key).text)} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
