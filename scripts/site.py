"""A hook of mkdocs: pages made from README, changelog, registry, recipes and commands, so that they cannot lag behind.

`mkdocs build --strict` runs it; see mkdocs.yml.
"""

from __future__ import annotations

import html
import importlib
import inspect
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from zoo.cli.config_worker import describe_config
from zoo.cli.help_text import TRAINER_COMMANDS
from zoo.cli.tools import find_tools
from zoo.common import registry
from zoo.common.configs import load_recipe
from zoo.common.systems import OVERRIDES, list_systems, recipe_paths
from zoo.ui.tabs.config_edits import describe_key, flatten

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SOUND = re.compile(r'<a href="([^"]+\.mp3)">([^<]*)</a>')
_ANIMATION = re.compile(r'<img ([^>]*)src="([^"]+)\.gif"([^>]*)>')
# functions of `import zoo`
CALLED = {
    "zoo.load": "zoo.runs.load:load",
    "zoo.load_net": "zoo.runs.load:load_net",
    "zoo.build": "zoo.cli.build_run:build",
    "zoo.register": "zoo.common.registry:register",
}


# Questions that strangers come with; the README, which is the start page, is too short for them.
QUESTIONS = {
    "How do I train on my own data?": "own_data.md",
    "How do I fine-tune?": "fine_tune.md",
    "How do I resume a run?": "terminal.md#a-run-stopped-and-resumed",
    "How much GPU memory does a recipe need?": "tuning.md#batch-sizes-zoo-find-batch",
    "What does this key of a recipe mean?": "recipes/hifigan.md",
    "Which options has a command?": "reference/commands.md",
    "How do I train on several devices or machines?": "cluster.md",
    "How do I choose a learning rate, or search over a recipe?": "tuning.md",
    "How do I publish or fetch weights?": "hub.md",
    "How do other programs ask a trained system?": "serve.md",
    "How do I add a system of my own?": "add_a_system.md",
    "What do results sound and look like?": "gallery.md",
    "Do the demos learn what is claimed, on seeds that nobody chose?": "evidence.md",
    "How fast is it?": "benchmarks.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"index.md": _start(), "changelog.md": _top("CHANGELOG.md")}
    pages["reference/commands.md"] = _commands()
    pages["reference/zoo.md"] = _called()
    for package in registry.PACKAGES:
        pages[f"reference/{package.rpartition('.')[2]}.md"] = _parts(package)
    listed = recipe_paths()
    for name, title in _recipe_pages():
        short, _, about = title.partition(":")
        chosen = [each for each in listed.items() if each[0].partition("/")[0] == name]
        lines = [f"# {short}: recipes", "", about.strip(), "", *(line for each in chosen for line in _recipe(*each))]
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
    reference = [{"Commands": "reference/commands.md"}, {"Recipes": made}, {"zoo": "reference/zoo.md"}, *parts]
    config.nav[4:4] = [{"Reference": reference}]
    return config


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Name files of the repository that are no pages, in place of a link that leads nowhere."""
    return markdown if "/" in page.file.src_uri else _LINK.sub(_page_link, markdown)


def on_page_content(content: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Make players of links to sounds; who asks for no motion sees an animation's last image, the PNG beside it."""
    player = r'<audio controls preload="none" src="\1" aria-label="\2"><a href="\1">\2</a></audio>'
    still = '<source media="(prefers-reduced-motion: reduce)" srcset="\\2.png">'
    return _ANIMATION.sub(rf'<picture>{still}<img \1src="\2.gif"\3></picture>', _SOUND.sub(player, content))


def _page_link(match: re.Match[str]) -> str:
    mark, text, target = match.groups()
    return (
        match[0] if mark or not target.startswith("../") or "/" not in target else f"{text} (`{target.lstrip('./')}`)"
    )


def _top(name: str) -> str:
    """A file of the repository's top as a page: links that it has into docs/ lead from here, others are named."""

    def move_links(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if target.startswith(("http", "#")):
            return match[0]
        if target.startswith("docs/"):
            return f"{mark}[{text}]({target.removeprefix('docs/')})"
        return f"[{text}](changelog.md)" if target == "CHANGELOG.md" else f"{text} (`{target}`)"

    return _LINK.sub(move_links, (ROOT / name).read_text(encoding="utf-8"))


def _start() -> str:
    """The README, and before its first section where to look."""
    before, _, after = _top("README.md").partition("\n## ")
    links = "\n".join(f"- [{question}]({target})" for question, target in QUESTIONS.items())
    return f"{before}\n## Where to look\n\n{links}\n\n## {after}"


def _recipe_pages() -> list[tuple[str, str]]:
    return [*((system.name, system.title) for system in list_systems()), (OVERRIDES, "Settings of the trainer")]


def _commands() -> str:
    lines = ["# Commands", "", "`zoo COMMAND --help` tells the same at the terminal. `fit`, `validate` and `test` take"]
    lines += ["every key of a [recipe](../recipes/hifigan.md) as an option, too; `predict` those of `model`.", ""]
    for name, about in TRAINER_COMMANDS.items():
        sentence, _, usage = about.partition(": ")
        lines += [f"## zoo {name}", "", f"{sentence[:1].upper()}{sentence[1:]}:", ""]
        lines += [f"    zoo {each.strip()}" for each in usage.split(" | ")] + [""]
    for name, tool in sorted(find_tools().items()):
        lines += [f"## zoo {name}", "", _strip_markup(docstring(tool.path)), ""]
    return "\n".join(lines)


def docstring(place: str) -> str:
    """The docstring of a function "module:function", which is not imported."""
    module, _, name = place.partition(":")
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    function = file.read_text(encoding="utf-8").partition(f"\ndef {name}(")[2]
    return function.partition('"""')[2].partition('"""')[0]


def _strip_markup(text: str) -> str:
    """A docstring's first part as text and its arguments as a table."""
    about, _, rest = text.partition("\n    Args:\n")
    matches = re.findall(r"^ {8}(\*?\w+): (.*(?:\n {12}.*)*)", rest.partition("\n\n")[0], re.MULTILINE)
    rows = [f"| `{name.lstrip('*')}` | {_cell(' '.join(description.split()))} |" for name, description in matches]
    table = ["", "| argument | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join([inspect.cleandoc(about).strip(), *table])


def _called() -> str:
    lines = ["# zoo", "", "What is called from Python and no part of a recipe.", ""]
    for name, place in CALLED.items():
        lines += [f"## {name}", "", f"`{name}({', '.join(inspect.signature(import_function(place)).parameters)})`", ""]
        lines += [_strip_markup(docstring(place)), ""]
        sections = [each.split(None, 1) for each in docstring(place).split("\n\n")[2:] if each.strip()]
        lines += [
            line for title, description in sections for line in (f"**{title}** {' '.join(description.split())}", "")
        ]
    return "\n".join(lines)


def import_function(place: str) -> Any:
    """Return the function "module:function"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _parts(package: str) -> str:
    importlib.import_module(package)
    lines = [f"# {package}", "", inspect.getdoc(sys.modules[package]) or "", ""]
    for name in sorted(registry.component_names(package)):
        short = name.rpartition(".")[2]
        lines += [f"::: {registry.defining_module(name)}.{short}", "    options:", f"      heading: {name}", ""]
    return "\n".join(lines)


def _head_comment(recipe: Path) -> str:
    """The comment at the head of a recipe, its lines joined."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), recipe.read_text(encoding="utf-8").splitlines())
    return " ".join(line.lstrip("# ").strip() for line in lines)


def _recipe(name: str, path: Path) -> list[str]:
    config = load_recipe(path)
    values, arguments = flatten(config), describe_config(config)
    lines = [f"## {name}", "", _head_comment(path), "", "| key | default | meaning |", "|---|---|---|"]
    for key, value in values.items():
        formatted = json.dumps(value, ensure_ascii=False)
        description = describe_key(arguments, values, key).get("help", "")
        meaning = re.sub(r":\w+:(?=`)", "", description)  # roles of reStructuredText in Lightning's texts
        parts = re.sub(r"(?<=[./])", "<wbr>", html.escape(key))
        lines.append(f'| <code class="key">{parts}</code> | `{_cell(formatted)}` | {_cell(meaning)} |')
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
