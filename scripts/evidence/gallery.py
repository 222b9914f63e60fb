"""Sounds, animations and pictures of the documentation: python -m scripts.evidence.gallery train|draw --help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from scripts.bench.tools import Finding, evidence, train_once
from scripts.evidence.audiosr import lay_out
from zoo.audio.analysis.figures import plot_spectrograms
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io import files
from zoo.common.atomic_files import write_atomic
from zoo.common.reports import new_figure
from zoo.common.systems import recipe_root
from zoo.training.callbacks.media import figure_to_image

LARGEST_SOUND, LARGEST_PICTURE = 150, 300  # KB of a file


class Training(NamedTuple):
    """A recipe cut short to so many batches; the adversarial ones are too few then to have any."""

    recipe: str
    batches: int


TRAININGS = {
    "flow": Training("flow/demo_digits", 1200),
    "compressed_ad": Training("compressed_ad/demo", 1200),
    "hifigan": Training("hifigan/demo", 1000),
    "miipher_backbone": Training("miipher/demo_backbone", 400),
    "miipher_adapter": Training("miipher/demo_adapter", 800),
    "miipher_pretrain": Training("miipher/demo_pretrain", 40),
    "miipher": Training("miipher/demo_finetune", 20),
    "audiosr_vae": Training("audiosr/demo_vae", 250),
    "audiosr_vocoder": Training("audiosr/demo_vocoder", 250),
    "audiosr": Training("audiosr/demo", 100),
}
# what the recipes read: the variable, and the run that it names
BETWEEN = {
    "ZOO_BACKBONE": "miipher_backbone",
    "ZOO_AUTOENCODER": "audiosr_vae",
    "ZOO_VOCODER": "audiosr_vocoder",
    "ZOO_MIXED": "audiosr_clips",
}


def plan(root: Path) -> dict[Path, list[str]]:
    """The trainings, one after the other: run folders and arguments of `zoo`."""
    found = {}
    for name, training in TRAININGS.items():
        arguments = ["fit", f"--config={recipe_root() / training.recipe}.yaml"]
        arguments += [f"--trainer.default_root_dir={root / name}", f"--trainer.max_steps={training.batches}"]
        arguments += [
            f"--{key}={training.batches}" for key in ("trainer.val_check_interval", "checkpoints.every_n_steps")
        ]
        arguments += ["--trainer.num_sanity_val_steps=0"]
        if name == "miipher":
            arguments += [f"--init_from=[{root / 'miipher_adapter'},{root / 'miipher_pretrain'}]"]
        found[root / name] = arguments
    return found


def train(root: Path = Path("runs/gallery")) -> list[Finding]:
    """Train the shortened demos that are not trained yet.

    Args:
        root: folder of the runs.
    """
    os.environ |= {variable: str(root / run) for variable, run in BETWEEN.items()}
    lay_out(Path(os.environ["ZOO_MIXED"]))
    for folder, arguments in plan(root).items():
        train_once(folder, arguments)
    return [Finding(name, TRAININGS[name].batches, "batches") for name in TRAININGS]


def draw(
    root: Path = Path("runs/gallery"),
    output: Path = Path("docs"),
    hifigan: Path | None = None,
    miipher: Path | None = None,
    audiosr: Path | None = None,
    flow: Path | None = None,
    compressed_ad: Path | None = None,
) -> list[Finding]:
    """Make the sounds, animations and pictures of those runs that are there.

    Args:
        root: folder of the runs that `train` makes.
        output: folder of the documentation; files go into its `gallery` and `figures`.
        hifigan: another run of it, such as of the whole demo.
        miipher: likewise, of stage 3.
        audiosr: likewise, of stage 3.
        flow: likewise, of digits.
        compressed_ad: likewise.
    """
    given = {"hifigan": hifigan, "miipher": miipher, "audiosr": audiosr, "flow": flow, "compressed_ad": compressed_ad}
    drawn: list[Path] = []
    for name, run in given.items():
        steps = sorted((run or root / name).glob("media/step_*"))
        if steps:
            drawn += DRAWN[name](steps[-1], output)
        elif run:
            raise ValueError(f"{run} holds no media/step_*: train it with samples.enabled")
    if not drawn:
        raise ValueError(f"{root} holds no runs with samples, such as {root / 'flow' / 'media'}: train them first")
    sizes = {path: path.stat().st_size / 1000 for path in drawn}
    limits = {path: LARGEST_SOUND if path.suffix == ".mp3" else LARGEST_PICTURE for path in drawn}
    return [Finding(str(path), sizes[path], "KB", at_most=limits[path]) for path in drawn]


def _hifigan(step: Path, output: Path) -> list[Path]:
    """A recording's log-mel, the waveform made of it, and that waveform's log-mel."""
    audio = [files.read_mono(step / f"clip0_{name}.wav")[:66150] for name in ("target", "generated")]
    mels = LogMel()(torch.from_numpy(np.stack(audio)))  # (2, 80, F)
    figure = new_figure(10, 6)
    top, middle, bottom = figure.subplots(3, 1)
    titles = "in: log-mel of a held-out recording", "the log-mel of that waveform"
    for axes, mel, title in zip((top, bottom), mels, titles, strict=True):
        axes.imshow(mel, origin="lower", aspect="auto", cmap="magma", interpolation="nearest", clim=(-11, 1))
        axes.set(title=title, ylabel="mel band", xlabel="frame of 256 samples")
    middle.plot(audio[1], linewidth=0.4)
    middle.set(title="out: waveform", xlim=(0, len(audio[1])), xlabel="sample")
    picture = _picture(figure_to_image(figure), output / "figures/hifigan.png", colours=64)
    return [picture, *_sounds(step, output, "hifigan", ("target", "generated"), 22050)]


def _miipher(step: Path, output: Path) -> list[Path]:
    """Degraded speech, the restored and the clean recording."""
    titles = {"input": "in: degraded speech", "generated": "out: restored", "target": "the clean recording"}
    clips = {title: files.read_mono(step / f"clip0_{name}.wav", 22050) for name, title in titles.items()}
    figure = plot_spectrograms(clips, 22050)
    figure.set_size_inches(9.6, 6.6)
    picture = _picture(figure_to_image(figure), output / "figures/miipher.png", colours=48)
    return [picture, *_sounds(step, output, "miipher", tuple(titles), 22050)]


def _audiosr(step: Path, output: Path) -> list[Path]:
    """A recording whose band ends at 2 kHz, the restored one and the original."""
    titles = {"input": "in: band-limited", "restored": "out: restored", "target": "the original"}
    clips = {title: files.read_mono(step / f"clip0_{name}.wav", 16000) for name, title in titles.items()}
    figure = plot_spectrograms(clips, 16000, cutoff_hz=2000)
    figure.set_size_inches(10, 6)
    picture = _picture(figure_to_image(figure), output / "figures/audiosr.png", colours=128)
    return [picture, *_sounds(step, output, "audiosr", tuple(titles), 16000)]


def _flow(step: Path, output: Path) -> list[Path]:
    """Digits on their way from noise, and one of each class above its nearest training image."""
    way, samples = (np.asarray(Image.open(step / f"val_{name}.png").convert("L")) for name in ("trajectory", "samples"))
    between = np.full((len(way), 20), 255, np.uint8)
    picture = _picture(np.concatenate([way, between, samples], axis=1), output / "figures/flow.png")
    return [picture, *_animation(step / "val_animation.gif", output / "gallery/flow.gif")]


def _compressed_ad(step: Path, output: Path) -> list[Path]:
    """Rooms with goals that were never trained, and the returns of an agent's episodes."""
    animation = _animation(step / "val_episodes.gif", output / "gallery/compressed_ad.gif")
    figure = new_figure(10, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    left.imshow(Image.open(animation[1]))
    left.set_title("rooms whose goals were never trained:\nfirst episode above, tenth below", fontsize=10)
    right.imshow(Image.open(step / "val_learning.png"))
    for axes in (left, right):
        axes.axis("off")
    return [_picture(figure_to_image(figure), output / "figures/compressed_ad.png"), *animation]


DRAWN: dict[str, Callable[[Path, Path], list[Path]]] = {
    "hifigan": _hifigan,
    "miipher": _miipher,
    "audiosr": _audiosr,
    "flow": _flow,
    "compressed_ad": _compressed_ad,
}


def _sounds(step: Path, output: Path, name: str, clips: tuple[str, ...], sample_rate: int) -> list[Path]:
    """The first validation clip as MP3, which every browser plays."""
    (output / "gallery").mkdir(parents=True, exist_ok=True)
    paths = [output / "gallery" / f"{name}_{clip}.mp3" for clip in clips]
    for path, clip in zip(paths, clips, strict=True):
        files.write(path, files.read_mono(step / f"clip0_{clip}.wav", sample_rate), sample_rate)
    return paths


def _animation(source: Path, target: Path) -> list[Path]:
    """A run's animation and, for readers who want no motion, its last image."""
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    write_atomic(target, lambda file: file.write(content))
    with Image.open(source) as frames:
        frames.seek(frames.n_frames - 1)  # type: ignore[attr-defined]
        return [target, _picture(np.asarray(frames.convert("RGB")), target.with_suffix(".png"), colours=64)]


def _picture(pixels: np.ndarray, path: Path, colours: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    reduced = image.quantize(colours) if colours else image
    write_atomic(path, lambda file: reduced.save(file, "PNG", optimize=True))
    return path


if __name__ == "__main__":
    evidence({"train": train, "draw": draw})
