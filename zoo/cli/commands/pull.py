"""`zoo pull`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.runs.hub.originals import Original


def main(*what: str, output: Path | None = None, file: Path | None = None) -> None:
    """Fetch a model that was pushed, or an original's published weights as ours; without a name, list those.

    `zoo pull user/name`, `zoo pull hf://user/name@revision`, `zoo pull hifigan UNIVERSAL_V1 --file g_02500000`.

    Args:
        what: name on the hub; or a system and the name of published weights.
        output: folder to write; a pushed model stays in the cache without one, weights go to pulled/SYSTEM/NAME.
        file: published weights that you have fetched yourself.

    Raises:
        ValueError: the name is none, or the output exists.
        OSError: the hub does not give it.
    """
    from zoo.runs.hub import originals

    if output is not None and output.exists():
        raise ValueError(f"{output} exists; name another folder with --output")
    if not what:
        _list(originals.ORIGINALS)
    elif len(what) == 1:
        if file is not None:
            raise ValueError("--file goes with the name of published weights: zoo pull SYSTEM NAME --file FILE")
        _pull(what[0], output)
    elif len(what) == 2:
        original = originals.find(*what)
        place = f"https://huggingface.co/{original.place}" if original.on_hub else original.place
        print(
            f"{original.system} {original.name}: {original.about}\n  {place}\n  {originals.terms(original)}", flush=True
        )
        target = output or Path("pulled", original.system, original.name)
        if target.exists():
            raise ValueError(f"{target} exists; name another folder with --output")
        originals.convert(original, originals.obtain(original, file), target)
        print(f"wrote {target}")
    else:
        raise ValueError(f"zoo pull takes one name, or a system and a name; found {' '.join(what)}")


def _pull(text: str, output: Path | None) -> None:
    from zoo.common.atomic import replacing
    from zoo.runs.hub.models import PREFIX, HubName, download, is_hub_name, parse_hub_name

    name = parse_hub_name(text if is_hub_name(text) else f"{PREFIX}{text}")
    folder = download(name)
    if output is None:
        print(folder)
    else:
        with replacing(output) as aside:
            shutil.copytree(folder, aside)  # files, not the cache's links to them
        print(f"wrote {output}")
    print(f"  {HubName(name.repo, folder.name)}")


def _list(known: Sequence[Original]) -> None:
    from itertools import groupby

    from zoo.runs.hub.originals import terms

    for _, group in groupby(known, key=lambda each: (each.system, each.place, terms(each))):
        first, *rest = group
        print(f"{first.system}  {first.page}\n  {terms(first)}")
        for each in (first, *rest):
            print(f"    {each.name:<14} {each.about} (sha256 {each.sha256})")
    print("zoo pull SYSTEM NAME takes and converts one; zoo pull user/name takes a model that `zoo push` pushed.")
