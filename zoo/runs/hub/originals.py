"""Published weights of the originals by name: where they are, under which licence, and how they become ours.

Nothing is taken before the licence was told. Files of hubs come through huggingface_hub, those of other hosts are the
user's to fetch; both are read by the restricted reader that `zoo convert` has. No place was contacted when this table
was made: it says what the projects' pages and NOTICE say.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.systems import find_system
from zoo.runs.hub.models import client, explain_hub_errors

UNKNOWN = "unknown"
HIFIGAN_DRIVE = "https://drive.google.com/drive/folders/1-eEYTB5Av9jNql0WGBlRoi-WH2J7bp5Y"


@dataclass(frozen=True)
class Original:
    """Weights that an original's authors, or others, have published.

    Args:
        place: `user/name` on the hub, or an address of another host.
        files: that are taken from a hub; `source` is what is converted then, "" for their folder.
        licence: of the weights, UNKNOWN where its page has to be read.
        sha256: of `source`, where known.
    """

    system: str
    name: str
    about: str
    place: str
    licence: str
    non_commercial: bool = False
    files: tuple[str, ...] = ()
    source: str = ""
    sha256: str = UNKNOWN

    @property
    def on_hub(self) -> bool:
        """Whether huggingface_hub fetches it."""
        return "://" not in self.place

    @property
    def page(self) -> str:
        """Where it and its licence are read of."""
        return f"https://huggingface.co/{self.place}" if self.on_hub else self.place


def _vocoder(name: str, about: str) -> Original:
    return Original("hifigan", name, about, HIFIGAN_DRIVE, "MIT")


ORIGINALS = (
    _vocoder("UNIVERSAL_V1", "V1, many speakers; with discriminators, to fine-tune"),
    *(_vocoder(f"LJ_V{n}", f"V{n}, LJSpeech") for n in (1, 2, 3)),
    *(_vocoder(f"LJ_FT_T2_V{n}", f"V{n}, LJSpeech, fine-tuned on Tacotron 2") for n in (1, 2, 3)),
    *(_vocoder(f"VCTK_V{n}", f"V{n}, VCTK") for n in (1, 2, 3)),
    Original(
        "audiosr", "basic", "any sound to 48 kHz", "haoheliu/audiosr_basic", UNKNOWN,
        files=("pytorch_model.bin",), source="pytorch_model.bin",
    ),
    Original(
        "audiosr", "speech", "speech to 48 kHz; 6.2 GB", "haoheliu/audiosr_speech", UNKNOWN,
        files=("pytorch_model.bin",), source="pytorch_model.bin",
    ),
    Original(
        "miipher", "HuBERT_HiFi-GAN_v0.1", "adapter on layer 6 of mHuBERT-147, and its vocoder",
        "Atotti/miipher-2-HuBERT-HiFi-GAN-v0.1", "CC BY-NC-SA 4.0, as its backbone mHuBERT-147; none stated of its own",
        non_commercial=True, files=("config.json", "*.pt", "*.ckpt"),
    ),
)  # fmt: skip


def find(system: str, name: str) -> Original:
    """The original of a name.

    Raises:
        ValueError: there is none; those of the system are told.
    """
    of_system = [each for each in ORIGINALS if each.system == system.replace("-", "_")]
    for each in of_system:
        if each.name.lower() == name.lower():
            return each
    if not of_system:
        known = ", ".join(sorted({each.system for each in ORIGINALS}))
        raise ValueError(f"no published weights of {system!r} are known here (there are some of {known})")
    raise ValueError(f"{system} has no weights {name!r}; known are {', '.join(each.name for each in of_system)}")


def terms(original: Original) -> str:
    """What is to be known before it is taken."""
    licence = original.licence if original.licence != UNKNOWN else "not known here, read it on its page"
    return f"licence: {licence}" + (" (NON-COMMERCIAL)" if original.non_commercial else "")


def obtain(original: Original, file: Path | None = None) -> Path:
    """The file or folder to convert: what the user fetched, or what the hub has.

    Raises:
        ValueError: when the user has to fetch it, with the place; when its sha256 is another one.
        FileNotFoundError: when there is no such file.
        HubError: when the hub does not give it.
    """
    if file is None and not original.on_hub:
        raise ValueError(
            f"{original.system} {original.name} lies where only a browser gets it: fetch its folder from "
            f"{original.place}, and name its generator file (config.json beside it): zoo pull {original.system} "
            f"{original.name} --file FILE"
        )
    if file is not None and not file.exists():
        raise FileNotFoundError(f"--file {file}: no such file or folder")
    if file is None:
        file = _fetch(original)
    if original.sha256 != UNKNOWN and file.is_file():
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != original.sha256:
            raise ValueError(f"{file}: its sha256 is {found}, that of {original.name} is {original.sha256}")
    return file


def _fetch(original: Original) -> Path:
    from huggingface_hub import constants, snapshot_download

    with explain_hub_errors(f"{original.system} {original.name} ({original.place})"):
        if not constants.HF_HUB_OFFLINE:
            info = client().model_info(original.place, files_metadata=True)
            held = {each.rfilename: each.size or 0 for each in info.siblings or []}
            cache = Path(constants.HF_HUB_CACHE)
            there = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
            need, free = held.get(original.source, sum(held.values())), shutil.disk_usage(there).free
            if need > free:
                raise ValueError(f"{original.place} needs {need / 2**30:.1f} GiB, {there} has {free / 2**30:.1f} GiB")
        folder = Path(snapshot_download(original.place, allow_patterns=list(original.files)))
    found = folder / original.source
    if not found.exists():
        raise FileNotFoundError(f"{original.place} has no {original.source} any more: see its page")
    return found


def convert(original: Original, source: Path, output: Path) -> dict[str, Any]:
    """Convert what was obtained into an export of ours; returns the converter's report."""
    converter = importlib.import_module(f"{find_system(original.system).package}.convert")
    return converter.convert(source, output)
