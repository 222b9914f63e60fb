"""Pushing a run: an export with a full card, samples and curves, uploaded as one commit.

The upload is `HfApi.upload_folder`, for it is what the hub's own client resumes: files that are there already are
neither sent nor committed again, so the same push makes no second commit, and what a killed one has sent is kept by the
hub until a commit names it. A model's few files are one commit (it begins a second one only beyond hundreds of files),
so no revision has the weights of one push and the description of another; `upload_large_folder` would make several, and
is gone from newer releases. Run against the tests' server over LFS only: the Xet transfer of a real hub was not.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zoo.common.reading.text import load_json
from zoo.common.registry import package_of
from zoo.runs import listing
from zoo.runs.export import CONFIG_NAME, write_export
from zoo.runs.hub import card
from zoo.runs.hub.client import HubError, asking, check_token, client, endpoint
from zoo.runs.hub.names import PREFIX, Name, parsed
from zoo.runs.load import load, read_parts

log = logging.getLogger(__name__)

MAIN = "main"
SAMPLES = "samples"
SETTINGS_NAME = "training.yaml"
MOST_BYTES = 10_000_000  # of a sample
MOST_SAMPLES = 8  # of one kind of file
# What a push writes, and so what of an earlier one it deletes.
OURS = (
    "*.safetensors",
    "config.json",
    SETTINGS_NAME,
    card.CURVE_NAME,
    "*.onnx",
    "onnx_*",
    "samples/*",
    "frozen/*",
    "peft/*",
)
_SECRETS = re.compile(r"(?<=://)[^/@\s]+@|(?<=\S)\?\S*$")  # password and signature of an address


class Pushed(NamedTuple):
    """What a push came to: the model at its commit, its page, and whether there was anything new."""

    name: Name
    page: str
    changed: bool


def push(
    path: Path,
    repo: str,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    onnx: bool = False,
    licence: str = card.UNKNOWN,
    evaluations: Sequence[Path] = (),
) -> Pushed:
    """Push a run, a checkpoint or an export.

    Args:
        path: as `zoo.load` takes it, on this machine.
        repo: `user/name`; made when there is none.
        private: make it for oneself only.
        revision: branch; made when there is none.
        message: of the commit.
        onnx: add the net as ONNX.
        licence: of the weights, one of the hub's names.
        evaluations: folders that `zoo evaluate` wrote, whose figures the card shows.

    Raises:
        ValueError: when the name is none, or the model cannot be exported.
        HubError: when the hub does not take it.
    """
    given = parsed(repo if repo.startswith(PREFIX) else f"{PREFIX}{repo}")
    if given.revision is not None:
        raise ValueError(f"{repo}: name the branch with --revision {given.revision}")
    name = Name(given.repo, revision)
    hub, where = client(), f"push to {name}"
    check_token()
    with asking(where):  # before an export that may take minutes
        exists = hub.repo_exists(name.repo)
        if exists and private and not hub.model_info(name.repo).private:
            raise HubError(f"{where}: it is there and public; make it private on its page {endpoint()}/{name.repo}")
    with tempfile.TemporaryDirectory(prefix="zoo-push-") as place:
        folder = Path(place) / "model"
        about = write_package(folder, path, name, onnx, licence, evaluations)
        trained = f", {about.step} batches" if about.step else ""
        with asking(where):
            hub.create_repo(name.repo, private=private or None, exist_ok=True)
            if revision is not None:
                hub.create_branch(name.repo, branch=revision, exist_ok=True)
            before = hub.model_info(name.repo, revision=revision).sha
            logging.getLogger("huggingface_hub.hf_api").addFilter(_is_news)
            commit = hub.upload_folder(
                repo_id=name.repo,
                folder_path=folder,
                revision=revision,
                commit_message=message or f"{about.recipe or about.system}{trained}",
                delete_patterns=list(OURS),
            )
    return Pushed(Name(name.repo, commit.oid), f"{endpoint()}/{name.repo}", commit.oid != before)


def write_package(
    folder: Path,
    path: Path,
    name: Name,
    onnx: bool = False,
    licence: str = card.UNKNOWN,
    evaluations: Sequence[Path] = (),
) -> card.About:
    """Write what a push uploads; arguments and errors as those of `push`.

    Returns:
        What its card was made of.
    """
    specs, _, _ = read_parts(path)
    model = load(path)
    usage = model.usage.replace("PATH_OF_THIS_FOLDER", str(name))
    source, form = specs.get("source") or path.name, model.onnx_form() if onnx else None
    graphs = write_export(folder, specs, model.parts(), source, specs.get("step"), usage, form)
    for key, value in listing.flatten(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8"))).items():
        if isinstance(value, str) and shown_settings(value) != value:
            raise ValueError(f"{path}: its {key} is {value!r}, which only this machine has: nobody could load it")
    found = path if path.is_dir() and path.suffix != ".ckpt" else path.parent
    run = found if (found / listing.CONFIG_NAME).is_file() else None
    config = {} if run is None else shown_settings(listing.read_settings(run))
    values = sum(tensor.numel() for part in model.parts().values() for tensor in part.state_dict().values())
    about = card.About(
        repo=name.repo,
        name=str(name),
        address=f"{endpoint()}/{name.repo}/resolve/{name.revision or MAIN}/",
        package=package_of(type(model)),
        inference=type(model).__name__,
        usage=usage,
        values=values,
        step=specs.get("step"),
        run=run,
        config=config,
        frozen=specs.get("frozen", {}),
        licence=licence,
        onnx=list(graphs),
    )
    if run is not None:
        recipe = f"# recipe: {about.recipe}\n" if about.recipe else ""
        text = recipe + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        (folder / SETTINGS_NAME).write_text(text, encoding="utf-8")
        about.samples, about.left_out = copy_samples(run, folder / SAMPLES)
        about.curve = card.draw_curve(run, folder / card.CURVE_NAME)
        about.metrics = card.metrics_of(run, about.step)
        beside = sorted({file.parent for kind in card.EVALUATIONS for file in run.glob(f"*/{kind}")})
        evaluations = [*evaluations, *beside]
    about.metrics = [*about.metrics, *(each for place in evaluations for each in card.evaluated(place))]
    about.adapters = _publish(model, about.package, folder, name)
    card.write_card(folder, about)
    return about


def _is_news(record: logging.LogRecord) -> bool:
    return "No files have been modified" not in record.getMessage()  # the command says so


def _publish(model: Any, package: str, folder: Path, name: Name) -> list[str]:
    """Let the system write what other libraries read, where its converter has `publish(model, folder, repo)`."""
    if importlib.util.find_spec(f"{package}.convert") is None:
        return []
    publish = getattr(importlib.import_module(f"{package}.convert"), "publish", None)
    return [] if publish is None else publish(model, folder, name.repo)


def shown_settings(value: Any) -> Any:
    """Settings as anybody may see them: of absolute paths the last part, addresses without passwords and signatures."""
    if isinstance(value, Mapping):
        return {key: shown_settings(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shown_settings(each) for each in value]
    if isinstance(value, str) and "://" in value:
        return _SECRETS.sub("", value)
    if isinstance(value, str) and (value.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", value)):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value


def copy_samples(run: Path, folder: Path) -> tuple[list[str], int]:
    """Copy the newest samples of a run that are not too large, some of each kind.

    Returns:
        Names of the copies, and how many were left out.
    """
    newest = next((each for each in listing.media_of(run) if any(each.iterdir())), None)
    files = sorted(newest.iterdir()) if newest else []
    files = [file for file in files if file.suffix in (*card.AUDIO, *card.IMAGES, ".csv") and not file.is_symlink()]
    counts: dict[str, int] = {}
    names = []
    for file in files:
        if file.stat().st_size <= MOST_BYTES and counts.get(file.suffix, 0) < MOST_SAMPLES:
            counts[file.suffix] = counts.get(file.suffix, 0) + 1
            folder.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / file.name)
            names.append(file.name)
    return names, len(files) - len(names)
