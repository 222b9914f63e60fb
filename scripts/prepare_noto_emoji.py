"""Write Noto's colour emoji as images in classes: python scripts/prepare_noto_emoji.py FONT.ttf --output FOLDER.

Debian's fonts-noto-color-emoji (SIL Open Font License) has 136 x 128 pixels a glyph. FOLDER gets `train/CLASS/CODE.png`
and `val/...`, without skin tones; variants of one emoji are in one of the two. Needs fontTools, a part of matplotlib.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from collections import Counter
from pathlib import Path

from fontTools.ttLib import TTFont
from PIL import Image, ImageOps

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
FLAG, PEOPLE, VAL_EVERY = "flag", "people", 5  # one emoji of five is held out
RANGES = {  # hexadecimal code points by class; the first that matches counts
    "face": "2639-263a 1f600-1f637 1f641-1f644 1f910-1f917 1f920-1f92f 1f970-1f976 1f978-1f97a 1f9d0 1fae0-1fae5 1fae8",
    PEOPLE: "261d 26f7 26f9 270a-270d 1f385 1f3c2-1f3c4 1f3c7 1f3ca-1f3cc 1f442-1f450 1f466-1f478 1f47c 1f481-1f483 "
    "1f485-1f487 1f48f 1f491 1f4aa 1f574-1f575 1f57a 1f590-1f596 1f645-1f647 1f64b-1f64f 1f6a3 1f6b4-1f6b6 1f6c0 1f6cc "
    "1f90c 1f90f-1f91f 1f930-1f93e 1f977 1f9b5-1f9b6 1f9b8-1f9b9 1f9bb 1f9cd-1f9df 1fac2-1fac5 1faf0-1faf8",
    "nature": "2618 1f331-1f335 1f337-1f33c 1f33e-1f344 1f400-1f43f 1f638-1f64a 1f940 1f980-1f9ae 1fab0-1fabf",
    "food": "2615 1f32d-1f37f 1f382 1f942-1f944 1f950-1f96f 1f9c0-1f9cb 1fad0-1fadb",
    "travel": "26e9-26fd 2708 1f301 1f303-1f307 1f309 1f30b 1f3a0-1f3a2 1f3aa 1f3cd-1f3ce 1f3d4-1f3f0 1f492 "
    "1f54b-1f54d 1f5fa-1f5fe 1f680-1f6a4 1f6b2 1f6d5-1f6d6 1f6e3-1f6fc",
    "symbol": "203c-2b55 3030-3299 1f170-1f251 1f493-1f49f 1f4a0-1f4af 1f500-1f53d 1f550-1f567 1f6ab-1f6c5 1f7e0-1f7f0",
    "object": "1f004 1f0cf 1f300-1f3fa 1f440-1f5ff 1f6a5-1f6e2 1f93f-1f9af 1f9b4-1faff",
}
REGIONS, TONES, JOINER = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400), 0x200D
VARIANTS = {JOINER, 0xFE0F, 0x27A1, 0x2640, 0x2642, *range(0x1F466, 0x1F46A), 0x1F9D1}  # genders, ages, directions


def class_of(codes: tuple[int, ...]) -> str | None:
    """Return the class of an emoji's code points; None for one that is left out."""
    if (len(codes) == 2 and all(code in REGIONS for code in codes)) or (len(codes) > 3 and codes[0] == 0x1F3F4):
        return FLAG  # of a country, or of a region by its letters
    classes = [name for name, ranges in RANGES.items() if any(_contains(ranges, code) for code in codes)]
    if len(codes) == 1 and codes[0] not in {*REGIONS, *TONES}:
        return next(iter(classes), None)
    return PEOPLE if PEOPLE in classes and JOINER in codes and not set(codes) & set(TONES) else None


def is_held_out(codes: tuple[int, ...]) -> bool:
    """Return whether an emoji is held out, by the hash of the code point that its variants share."""
    shared = codes if class_of(codes) == FLAG else sorted(set(codes) - VARIANTS)[:1]
    return int(hashlib.sha256(" ".join(map(hex, shared)).encode()).hexdigest(), 16) % VAL_EVERY == 0


def _contains(ranges: str, code: int) -> bool:
    bounds = ([int(bound, 16) for bound in each.split("-")] for each in ranges.split())
    return any(each[0] <= code <= each[-1] for each in bounds)


def read_glyphs(font: TTFont) -> dict[bytes, tuple[int, ...]]:
    """Return the code points of each picture (PNG) of a font with a CBDT table."""
    codes = {name: (code,) for code, name in reversed(font.getBestCmap().items())}
    for lookup in font["GSUB"].table.LookupList.Lookup:
        for first, ligatures in getattr(lookup.SubTable[0], "ligatures", {}).items():
            for each in ligatures:
                parts = [first, *each.Component]
                codes.setdefault(each.LigGlyph, tuple(code for part in parts for code in codes.get(part, ())))
    return {glyph.imageData: codes.get(name, ()) for name, glyph in font["CBDT"].strikeData[0].items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("font", nargs="?", default=FONT)
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels (default: 32)")
    options = parser.parse_args()
    if not Path(options.font).is_file():
        parser.error(f"{options.font}: no such font; it is in Debian's fonts-noto-color-emoji")
    if options.output.exists():
        parser.error(f"--output {options.output}: exists; expected a new folder")
    counts = Counter[str]()
    for data, codes in read_glyphs(TTFont(options.font)).items():
        if name := class_of(codes):
            part = f"{'val' if is_held_out(codes) else 'train'}/{name}"
            (options.output / part).mkdir(parents=True, exist_ok=True)
            glyph = Image.open(io.BytesIO(data)).convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", glyph.size, "white"), glyph).convert("RGB")
            image = ImageOps.pad(image, (options.size,) * 2, Image.Resampling.LANCZOS, color="white")
            image.save(options.output / part / f"{'_'.join(f'{code:x}' for code in codes)}.png")
            counts[part] += 1
    print(", ".join(f"{part} {count}" for part, count in sorted(counts.items())), "in", options.output)


if __name__ == "__main__":
    main()
