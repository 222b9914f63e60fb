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
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.common.configs import dump_yaml, load_json
from zoo.common.registry import package_of
from zoo.common.systems import list_systems
from zoo.runs import run_folder, run_info
from zoo.runs.components import CONFIG_NAME, read_components
from zoo.runs.export import write_export
from zoo.runs.hub import model_card
from zoo.runs.hub.models import (
    LOG_IN,
    PREFIX,
    HubError,
    HubName,
    client,
    endpoint,
    explain_hub_errors,
    parse_hub_name,
)
from zoo.runs.load import load

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
SAMPLES = "samples"
SETTINGS_NAME = "training.yaml"
MAX_SAMPLE_BYTES = 10_000_000  # of a sample
MAX_SAMPLES = 8  # of one kind of file
# What a push writes, and so what of an earlier one it deletes.
PUSHED = (
    "*.safetensors",
    "config.json",
    SETTINGS_NAME,
    model_card.CURVE_NAME,
    "*.onnx",
    "onnx_*",
    "samples/*",
    "frozen/*",
    "peft/*",
)
_SECRETS = re.compile(r"(?<=://)[^/@\s]+@|(?<=\S)\?\S*$")  # password and signature of an address


class Pushed(NamedTuple):
    """What a push came to: the model at its commit, its page, and whether there was anything new."""

    name: HubName
    page: str
    changed: bool


def push(
    path: Path,
    repo: str,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    onnx: bool = False,
    licence: str = model_card.UNKNOWN,
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
    given = parse_hub_name(repo if repo.startswith(PREFIX) else f"{PREFIX}{repo}")
    if given.revision is not None:
        raise ValueError(f"{repo}: name the branch with --revision {given.revision}")
    name = HubName(given.repo, revision)
    hub, subject = client(), f"push to {name}"
    check_push_allowed(hub, name, private, subject)
    with tempfile.TemporaryDirectory(prefix="zoo-push-") as place:
        folder = Path(place) / "model"
        title = prepare_folder(folder, path, name, onnx, licence, evaluations)
        with explain_hub_errors(subject):
            hub.create_repo(name.repo, private=private or None, exist_ok=True)
            if revision is not None:
                hub.create_branch(name.repo, branch=revision, exist_ok=True)
            before = hub.model_info(name.repo, revision=revision).sha
            logging.getLogger("huggingface_hub.hf_api").addFilter(_is_news)
            commit = hub.upload_folder(
                repo_id=name.repo,
                folder_path=folder,
                revision=revision,
                commit_message=message or title,
                delete_patterns=list(PUSHED),
            )
    return Pushed(HubName(name.repo, commit.oid), f"{endpoint()}/{name.repo}", commit.oid != before)


def check_push_allowed(hub: HfApi, name: HubName, private: bool, subject: str) -> None:
    """Refuse what a hub would refuse, before an export that may take minutes.

    Raises:
        HubError: there is no token, the hub may not be asked, or a public model is to be private.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set: nothing can be pushed; unset it")
    if get_token() is None:
        raise HubError(f"no token for {endpoint()}: {LOG_IN}, to one that may write")
    with explain_hub_errors(subject):
        exists = hub.repo_exists(name.repo)
        if private and exists and not hub.model_info(name.repo).private:
            raise HubError(f"{subject}: it is there and public; make it private on its page {endpoint()}/{name.repo}")


def prepare_folder(
    folder: Path,
    path: Path,
    name: HubName,
    onnx: bool = False,
    licence: str = model_card.UNKNOWN,
    evaluations: Sequence[Path] = (),
) -> str:
    """Write what a push uploads; arguments and errors as those of `push`.

    Returns:
        The title of the commit.
    """
    specs, _, _ = read_components(path)
    model = load(path)
    usage, step = model.usage.replace("PATH_OF_THIS_FOLDER", str(name)), specs.get("step")
    source, form = specs.get("source") or path.name, model.onnx_form() if onnx else None
    graphs = write_export(folder, specs, model.modules(), source, step, usage, form)
    check_portable(folder, path)
    found = path if path.is_dir() and path.suffix != ".ckpt" else path.parent
    run = found if (found / run_folder.CONFIG_NAME).is_file() else None
    package = package_of(type(model))
    system = package.rpartition(".")[2]
    config: dict[str, Any] = {}
    metrics: list[model_card.Metric] = []
    samples: list[str] = []
    recipe = None
    if run is not None:
        config, recipe = (
            shown_settings(run_info.read_settings(run)),
            run_info.read_recipe_name(run / run_folder.CONFIG_NAME),
        )
        text = (f"# recipe: {recipe}\n" if recipe else "") + dump_yaml(config)
        (folder / SETTINGS_NAME).write_text(text, encoding="utf-8")
        samples = copy_samples(run, folder / SAMPLES)
        metrics = model_card.metrics_of(run, step)
        beside = sorted({file.parent for kind in model_card.EVALUATIONS for file in run.glob(f"*/{kind}")})
        evaluations = [*evaluations, *beside]
    metrics += [metric for place in evaluations for metric in model_card.read_evaluation(place)]
    model_card.write_model_card(
        folder,
        name.repo,
        system,
        recipe,
        config,
        specs.get("frozen", {}),
        metrics,
        licence,
        samples,
        f"{endpoint()}/{name.repo}/resolve/{name.revision or MAIN}/",
        about=next((each.title for each in list_systems() if each.package == package), package),
        inference=type(model).__name__,
        usage=usage.strip(),
        name=str(name),
        step=step,
        adapters=_publish(model, package, folder, name),
        onnx=list(graphs),
        curve=run is not None and model_card.draw_curve(run, folder / model_card.CURVE_NAME),
        values=sum(tensor.numel() for part in model.modules().values() for tensor in part.state_dict().values()),
    )
    return f"{recipe or system}{f', {step} steps' if step else ''}"


def check_portable(folder: Path, path: Path) -> None:
    """Refuse an export whose description names what only this machine has.

    Raises:
        ValueError: naming the key.
    """
    for key, value in run_info.flatten_config(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8"))).items():
        if isinstance(value, str) and shown_settings(value) != value:
            raise ValueError(f"{path}: its {key} is {value!r}, which only this machine has: nobody could load it")


def _is_news(record: logging.LogRecord) -> bool:
    return "No files have been modified" not in record.getMessage()  # the command says so


def _publish(model: Any, package: str, folder: Path, name: HubName) -> list[str]:
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


def copy_samples(run: Path, folder: Path) -> list[str]:
    """Copy the newest samples of a run that are not too large, some of each kind; the names of the copies."""
    newest = next((each for each in run_info.sample_folders(run) if any(each.iterdir())), None)
    suffixes = (*model_card.AUDIO, *model_card.IMAGES, ".csv")
    counts: dict[str, int] = {}
    names = []
    for file in sorted(newest.iterdir()) if newest else []:
        if file.suffix not in suffixes or file.is_symlink() or file.stat().st_size > MAX_SAMPLE_BYTES:
            continue
        counts[file.suffix] = counts.get(file.suffix, 0) + 1
        if counts[file.suffix] <= MAX_SAMPLES:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / file.name)
            names.append(file.name)
    return names
