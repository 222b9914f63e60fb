"""The clips of an evaluation: those of the run's own recipe, or of a folder; and training audio for its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np

from zoo.audio import files
from zoo.audiosr.data import SuperResolutionData
from zoo.audiosr.items import Blank, Crops, Grid
from zoo.audiosr.simulate import Simulation, top
from zoo.audiosr.sources import FileCorpus, Recordings
from zoo.common.configs import read_config
from zoo.training.build import build
from zoo.training.export import is_export
from zoo.training.run import find_config, has_config

ENVELOPE_CLIPS = 200  # of the training set, evenly chosen
MAX_BAD_SHARE = 0.1  # of a folder's files


@dataclass(frozen=True)
class Settings:
    """What is evaluated.

    Attributes:
        data: folder of full-band audio; None for the validation clips of the run's recipe.
        train: folder of training audio for the mean envelope; None for the training clips of the run's recipe.
        cutoffs_hz: grid of cut-offs; None for that of the recipe, or of `SuperResolutionData`.
        max_items: most clips.
        seconds: length of an excerpt, where `data` names a folder.
        match_level: bring the lowest tenth of the bins to the target's level first, as AudioSR's note does.
        keep: clips of which sound and pictures are kept.
        options: of the restorer, in the place of those of the run; objects as their `class_path` and `init_args`.
    """

    data: Path | None = None
    train: Path | None = None
    cutoffs_hz: tuple[float, ...] | None = None
    max_items: int | None = None
    seconds: float = 5.0
    match_level: bool = False
    keep: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)


class Job(NamedTuple):
    """One clip at one cut-off.

    Attributes:
        number: of the grid's item.
        clip: its place among the clips.
        name: of the clip and its cut-off.
        turn: what the filter type follows from.
        samples: of the whole clip.
    """

    number: int
    clip: int
    name: str
    turn: int
    samples: int


def recipe_data(run: Path, settings: Settings) -> SuperResolutionData | None:
    """The data of the run's recipe, set up.

    Args:
        run: run folder, checkpoint or export.
        settings: of the evaluation.

    Returns:
        The data; None where it is not needed, or only for the envelope and the run names none.

    Raises:
        FileNotFoundError: the evaluation needs it, and the run names none.
        ValueError: it is another system's.
    """
    named = not is_export(run) and has_config(run)
    if settings.data is not None and (settings.train is not None or not named):
        return None
    if not named:
        raise FileNotFoundError(f"{run} holds no config.yaml, which would name its data: give a folder with --data")
    spec = read_config(find_config(run), brought=True)["data"]
    data = build(spec, L.LightningDataModule)
    if not isinstance(data, SuperResolutionData):
        raise ValueError(f"{run}: its data is no {SuperResolutionData.__name__}: give folders with --data and --train")
    data.prepare_data()
    data.setup("fit")
    return data


def make_grid(recipe: SuperResolutionData | None, settings: Settings, sample_rate: int) -> Grid:
    """All clips at all cut-offs.

    Args:
        recipe: the run's data; not needed where the settings name a folder.
        settings: of the evaluation.
        sample_rate: Hz.

    Returns:
        Items of one excerpt each.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: nothing to restore in it, or cut-offs that leave nothing to restore.
    """
    if settings.data is None:
        assert recipe is not None  # recipe_data has looked
        grid = recipe.val_set
        if settings.cutoffs_hz is not None and grid.recordings.low is None:
            grid.cutoffs_hz = list(settings.cutoffs_hz)
    else:
        corpus = FileCorpus(files.walk(settings.data), sample_rate, MAX_BAD_SHARE)
        cutoffs_hz = settings.cutoffs_hz or SuperResolutionData(sample_rate=sample_rate).val_cutoffs_hz
        recordings = Recordings(corpus)
        grid = Grid(
            recordings, recordings.usable, sample_rate, max(round(settings.seconds * sample_rate), 1),
            Blank(1.0, sample_rate, 0.0), Simulation(), cutoffs_hz,
        )  # fmt: skip
    grid.indices = grid.indices[: settings.max_items]
    wrong = [hz for hz in grid.cutoffs_hz if grid.recordings.low is None and not 0 < hz < top(sample_rate)]
    if not len(grid) or wrong:
        raise ValueError(
            f"nothing to restore: {len(grid.indices)} clips, cut-offs {grid.cutoffs_hz} Hz; those lie above 0 and "
            f"below {top(sample_rate):g} Hz"
        )
    return grid


def find_jobs(grid: Grid) -> Iterator[Job]:
    """The grid's items, clip after clip."""
    for number in range(len(grid)):
        clip, column = divmod(number, len(grid.cutoffs_hz))
        index = int(grid.indices[clip])
        name = f"{grid.recordings.high.names[index]}@{grid.cutoffs_hz[column]:g}"
        yield Job(number, clip, name, clip + column, grid.recordings.length(index))


def training_clips(recipe: SuperResolutionData | None, settings: Settings, sample_rate: int) -> Iterator[np.ndarray]:
    """Clips for the envelope, evenly chosen."""
    if settings.train is not None:
        paths = files.walk(settings.train)
        for number in _evenly(len(paths)):
            yield files.read_mono(paths[number], sample_rate)
        return
    assert recipe is not None  # the system is left out without
    crops: Crops = recipe.train_set
    for number in _evenly(len(crops.indices)):
        index = int(crops.indices[number])
        yield crops.recordings.read(index, 0, crops.recordings.length(index))[0]


def _evenly(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, ENVELOPE_CLIPS)).astype(int)).tolist()
