"""What all that draw many samples share: labels and seeds, the loaded run, its description, the processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.checks import check_at_least
from zoo.common.environment import local_device
from zoo.common.tensors import state_digest
from zoo.flow.data.image_sets import image_files
from zoo.flow.inference.request_files import read_conditions
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.sampling import SAMPLES
from zoo.flow.process.solvers import Solver
from zoo.runs.load import load
from zoo.training.resume import item_seed

SampleRequests = tuple[list[int] | None, list[int]]
"""Labels (None without classes) and seeds, one per sample."""


def sample_requests(
    count: int, seed: int, num_classes: int, labels: Sequence[int] | None = None, epoch: int = SAMPLES
) -> SampleRequests:
    """Labels, in turns, and seeds of samples 0, 1, ...; those of a sample do not depend on the count.

    Args:
        num_classes: of the net; 0 for none.
        labels: taken in turns; one that stands twice comes twice as often. None for all classes.
        epoch: of the keys of the noise.
    """
    check_at_least(1, count=count)
    if labels is not None and not num_classes:
        raise ValueError(f"labels {list(labels)} are given to a net that has no classes: leave them out")
    if labels is not None and (not labels or any(not 0 <= label <= num_classes for label in labels)):
        raise ValueError(f"labels lie between 1 and {num_classes} (0 is the null class), found {list(labels)}")
    seeds = [item_seed(seed, epoch, index) for index in range(count)]
    if not num_classes:
        return None, seeds
    choice = list(labels) if labels is not None else list(range(1, num_classes + 1))
    return [choice[index % len(choice)] for index in range(count)], seeds


@dataclass(frozen=True)
class GenerationRequest:
    """Samples 0, 1, ... to generate, each with the next label, prompt, image and mask in turn.

    Attributes:
        count: of the samples.
        seed: of their noise.
        labels: classes by number or name; None for all.
        prompts: for a net that takes texts; likewise
        images: a file, or a folder of them, for a net that takes images, and
        masks: of them, white where they are to be generated.
    """

    count: int
    seed: int = 63
    labels: Sequence[int | str] | None = None
    prompts: Sequence[str] | None = None
    images: Path | None = None
    masks: Path | None = None

    def labels_and_seeds(self, sampler: Sampler, epoch: int = SAMPLES) -> SampleRequests:
        """Labels and seeds of all samples; see `sample_requests`."""
        labels = sampler.label_numbers(self.labels)
        return sample_requests(self.count, self.seed, sampler.net.num_classes, labels, epoch)

    def files(self) -> dict[str, list[Path]]:
        """Images and masks by "image" and "mask"."""
        return {"image": _image_files(self.images), "mask": _image_files(self.masks)}

    def conditions(self, sampler: Sampler, seeds: Sequence[int]) -> GenerationConditions | None:
        """Conditions of the samples, which have these seeds; None where the net takes none."""

        def turns(values: Sequence[Any]) -> list[Any]:
            return [values[index % len(values)] for index in range(len(seeds))] if values else []

        if sampler.text is not None and not self.prompts:
            raise ValueError("prompts are needed: the net takes them; --prompts 'a cat', or '' for none")
        prompts = turns(self.prompts) if self.prompts else None
        return read_conditions(sampler, seeds, prompts, *(turns(paths) for paths in self.files().values()))


def _image_files(path: Path | None) -> list[Path]:
    """An image, or all of a folder by name; none for None."""
    if path is None or path.is_file():
        return [] if path is None else [path]
    files = image_files(path.glob("[!.]*")) if path.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{path} is neither an image nor a folder of images")
    return files


def load_sampler(
    run: Path,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    chunk: int | None = None,
    device: str = "cpu",
) -> Sampler:
    """Load a run folder, checkpoint or export to sample from it; None takes the run's solver, guidance or chunk.

    `cuda` is each process's own device where torchrun started several.
    """
    options: dict[str, Any] = {"solver": solver, "guidance": guidance, "chunk": chunk}
    sampler = load(run, local_device(device), **{name: value for name, value in options.items() if value is not None})
    if not isinstance(sampler, Sampler):
        raise ValueError(f"{run} is loaded as {type(sampler).__name__}; expected a run of flow matching (Sampler)")
    return sampler


def check_label_conditions(sampler: Sampler, command: str) -> None:
    """Refuse a run with texts or images, which a command does not give to its net."""
    if sampler.text is not None or sampler.image_condition is not None:
        raise ValueError(f"{command} takes a run without texts or images")


def sampler_settings(sampler: Sampler) -> dict[str, Any]:
    """What decides samples besides their labels and seeds, for JSON: the weights as a hash, path, solver, guidance."""
    return {
        **({} if sampler.latents is None else {"latents": state_digest(sampler.latents.state_dict())}),
        **({} if sampler.text is None else {"text": sampler.text.fingerprint()}),
        **({} if sampler.image_condition is None else {"image_condition": _describe(sampler.image_condition)}),
        "weights": state_digest(sampler.net.state_dict()),
        "prediction": sampler.prediction,
        "path": _describe(sampler.path),
        "solver": _describe(sampler.solver),
        "guidance": None if sampler.guidance is None else _describe(sampler.guidance),
    }


def _describe(part: Any) -> dict[str, Any]:
    arguments = {name: list(value.items()) if isinstance(value, dict) else value for name, value in vars(part).items()}
    return {"class": type(part).__name__, **arguments}  # mappings as lists, whose order counts
