"""Write AFHQ's validation images, resized, into one flat folder: python scripts/prepare_afhq.py data/afhq.

It is the reference of a Fréchet distance. Get the images first, v1 or v2 of https://github.com/clovaai/stargan-v2, and
unpack them; nothing is downloaded here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.flow.data.image_sets import class_ranks, find_splits, folder
from zoo.flow.data.images import Framing, decode_all
from zoo.flow.rendering import write_png


def write_flat(root: Path, output: Path, resolution: int) -> int:
    """Write the validation images as `<class>_<number>.png`; return how many."""
    splits = find_splits(root)
    if not splits:
        raise ValueError(f"{root}: expected the folders train and val (v2: test) with a folder of images per class")
    images = folder(splits[1])
    ranks = class_ranks(images.labels)
    names = [f"{images.classes[k - 1]}_{rank:05d}.png" for k, rank in zip(images.labels, ranks, strict=True)]
    if others := sorted({path.name for path in output.glob("*")} - set(names)):
        raise ValueError(f"{output}: holds {len(others)} other files, e.g. {others[0]}; give a folder of its own")
    for name, pixels in zip(names, decode_all(images.source, Framing(resolution)), strict=True):
        write_png(output / name, pixels)
    return len(names)


def main() -> None:
    """Read the command line and write the images; exits with 1 and one line on a faulty set."""
    parser = argparse.ArgumentParser(description="Write AFHQ's validation images, resized, into one flat folder.")
    parser.add_argument("root", type=Path, help="the folder of AFHQ (v1 or v2), with train and val or test")
    parser.add_argument("--eval-folder", type=Path, default=Path("data/afhq_eval"), help="default: data/afhq_eval")
    parser.add_argument("--resolution", type=int, default=64, help="height and width in pixels (default: 64)")
    options = parser.parse_args()
    try:
        count = write_flat(options.root, options.eval_folder, options.resolution)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(f"{count} images of {options.resolution} x {options.resolution} pixels in {options.eval_folder}")


if __name__ == "__main__":
    main()
