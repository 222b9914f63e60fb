"""Pushing a run: an export, whose card gets results, samples and licences, and the run's settings."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from zoo.common.configs import dump_yaml
from zoo.common.foreign_files import load_json
from zoo.common.registry import package_of
from zoo.common.reports import markdown_table
from zoo.runs import run_folder, run_info
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import CONFIG_NAME, WEIGHTS_NAME, is_export, read_components
from zoo.runs.export import write_export
from zoo.runs.hub.models import (
    LOG_IN,
    PREFIX,
    HubError,
    HubName,
    endpoint,
    explain_hub_errors,
    parse_hub_name,
    redact,
)
from zoo.runs.load import load

SOUNDS, IMAGES = (".wav", ".flac", ".ogg", ".mp3"), (".png", ".gif", ".jpg")
MAX_SAMPLES, MAX_SAMPLE_BYTES = 16, 10_000_000
PUSHED = (WEIGHTS_NAME, CONFIG_NAME, "training.yaml", "samples/*", "frozen/*")
SYSTEMS = {  # task as the hub calls it, and paper
    "hifigan": ("audio-to-audio", "HiFi-GAN, arXiv:2010.05646"),
    "flow": ("unconditional-image-generation", "Flow Matching for Generative Modeling, arXiv:2210.02747"),
    "miipher": ("audio-to-audio", "Miipher-2, arXiv:2505.04457"),
    "audiosr": ("audio-to-audio", "AudioSR: Versatile Audio Super-resolution at Scale, arXiv:2309.07314"),
    "ci_llm": ("text-generation", "LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685"),
    "compressed_ad": ("reinforcement-learning", "In-context RL with Algorithm Distillation, arXiv:2210.14215"),
}
LICENCES = {  # of data and backbones, by a pattern in what the config or a record calls them; see NOTICE
    r"lj_?speech": "LJSpeech: public domain",
    r"vctk": "VCTK: CC BY 4.0",
    r"libritts[-_]?r": "LibriTTS-R: CC BY 4.0",
    r"fleurs[-_]r": "FLEURS-R: CC BY 4.0",
    r"\bjvs": "JVS: its own terms, **non-commercial** (research and personal use)",
    r"afhq": "AFHQ: CC BY-NC 4.0, **non-commercial**",
    r"gsm8k": "GSM8K: MIT",
    r"mhubert-147": "mHuBERT-147: CC BY-NC-SA 4.0, **non-commercial**",
    r"rinna/japanese-(hubert|wav2vec2)": "Japanese HuBERT and wav2vec 2.0 of rinna: Apache-2.0",
    r"facebook/wav2vec2-large-xlsr-53": "XLSR-53: Apache-2.0",
    r"google/gemma": "Gemma: Gemma terms of use",
}


def push(
    run: str,
    name: str,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    license: str = "unknown",
    evaluation: Path | None = None,
    root: Path = Path("runs"),
) -> None:
    """Push a run's weights with a model card to a Hugging Face hub.

    Samples go along. The same push again changes nothing, and finishes one that was killed. The token
    is that of `hf auth login` or HF_TOKEN; HF_ENDPOINT names another hub.

    Args:
        run: run folder, its name below `root`, `last`, a checkpoint or an export.
        name: user/name of the model; created when missing.
        private: create it as a private one.
        revision: branch; created when missing.
        message: of the commit.
        license: of the weights, as the hub calls it, e.g. mit or cc-by-4.0.
        evaluation: folder that `zoo evaluate` wrote, for the card.
        root: folder of the runs that names are looked for in.

    Raises:
        ValueError, HubError: there is no such run, it cannot be exported, or the hub refuses it.
    """
    from huggingface_hub import HfApi, get_token

    paths = [path for path in (Path(run), root / run) if path.exists()]
    if paths:
        path = paths[0]
    else:
        path = run_folder.find_last_run(root) if run == "last" else run_info.find_run(run, root)
    model = parse_hub_name(name if name.startswith(PREFIX) else f"{PREFIX}{name}")
    if model.revision is not None:
        raise ValueError(f"{name}: name the branch with --revision {model.revision}")
    model, hub, subject = HubName(model.repo, revision), HfApi(), f"push to {model}"
    if get_token() is None:
        raise HubError(f"{subject}: no token for {endpoint()}: {LOG_IN}")
    with explain_hub_errors(subject):  # before an export that may take minutes
        if hub.repo_exists(model.repo) and private and not hub.model_info(model.repo).private:
            raise HubError(f"{subject}: it exists and is public; make it private on its page")
    with tempfile.TemporaryDirectory(prefix="zoo-push-") as temporary:
        folder = Path(temporary) / "model"
        title = write_package(folder, path, model, license, evaluation)
        with explain_hub_errors(subject):
            commit, is_new = _upload(hub, folder, model, private, message or title)
    result = f"pushed {path} to" if is_new else f"{path}: nothing new in"
    print(f"{result} {endpoint()}/{model.repo}\n  {HubName(model.repo, commit)}")


def _upload(hub: Any, folder: Path, model: HubName, private: bool, message: str) -> tuple[str, bool]:
    """Upload a folder as one commit; return the commit, and whether anything changed."""
    hub.create_repo(model.repo, private=private or None, exist_ok=True)
    if model.revision is not None:
        hub.create_branch(model.repo, branch=model.revision, exist_ok=True)
    before = hub.model_info(model.repo, revision=model.revision).sha
    files: dict[str, Any] = {"folder_path": folder, "delete_patterns": list(PUSHED)}  # those of an earlier push
    commit = hub.upload_folder(repo_id=model.repo, revision=model.revision, commit_message=message, **files)
    return commit.oid, commit.oid != before


def write_package(folder: Path, path: Path, name: HubName, licence: str, evaluation: Path | None) -> str:
    """Write the folder for a push; arguments and errors as those of `push`. Returns the title of the commit."""
    from huggingface_hub import ModelCard

    run = path if path.is_dir() and path.suffix != ".ckpt" else path.parent
    if run_folder.has_config_file(path):
        run_folder.refuse_links(run)
    name_of_source = path.name
    path = path if is_export(path) else find_checkpoint(path)  # one, also of a run that trains
    description, _, _ = read_components(path)
    model, step = load(path), description.get("step")
    source, usage = description.get("source") or name_of_source, model.usage.replace("PATH_OF_THIS_FOLDER", str(name))
    write_export(folder, description, model.modules(), source, step, usage)
    for key, value in run_info.flatten_config(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8"))).items():
        if redact(value) != value:
            raise ValueError(f"{path}: its {key} is {value!r}, which only this machine has: nobody could load it")
    settings, recipe = run_info.read_settings(run), run_info.read_recipe_name(run / run_folder.CONFIG_NAME)
    config = redact(settings)
    if config:
        (folder / "training.yaml").write_text(dump_yaml(config), encoding="utf-8")
    results = [("this run", _format_metrics(run, step))]
    results += [_format_evaluation(evaluation)] if evaluation else []
    records, initial = description.get("frozen", {}), config.get("init_from") or []
    models = [record["source"] for record in records.values() if record["source"] and not record["folder"]]
    models += [each for each in ([initial] if isinstance(initial, str) else initial) if each.startswith("hf://")]
    data = [str(value) for key, value in run_info.flatten_config(settings).items() if key.startswith("data.")]
    terms = [each for pattern, each in LICENCES.items() if re.search(pattern, "\n".join([*data, *models]).lower())]
    system = package_of(type(model)).rpartition(".")[2]
    task, paper = SYSTEMS.get(system, (None, ""))
    sections = {
        "Training": f"Recipe `{recipe}`, all settings: `training.yaml`." if recipe else "",
        "Results": "\n\n".join(f"Of {title}:\n\n{table}" for title, table in results if table),
        "Samples": copy_samples(run, folder, f"{endpoint()}/{name.repo}/resolve/{name.revision or 'main'}"),
        "Licences": "\n".join(f"- {each}" for each in (f"Weights: {licence}", *terms)),
        "Paper": paper,
    }
    card = ModelCard.load(folder / "README.md")
    card.data.license, card.data.pipeline_tag = licence, task
    card.data.base_model = [each.removeprefix("hf://").partition("@")[0] for each in dict.fromkeys(models)] or None
    card.text += "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items() if text)
    card.save(folder / "README.md")
    return f"{recipe or system}{f', {step} steps' if step else ''}"


def _format_metrics(run: Path, step: int | None) -> str:
    """Format the last values of a run's validations and tests, up to a step, as a table."""
    last: dict[str, tuple[float, float]] = {}  # batches trained, value
    for file in (run_folder.CSV_NAME, "validate.csv", "test.csv"):
        for name, points in run_info.read_curves(run / file).items():
            for at, value in points:
                trained = at + (file == run_folder.CSV_NAME)  # whose rows carry the number of the batch, from 0
                is_later = trained >= last.get(name, (0.0,))[0] and (step is None or trained <= step)
                if is_later and name.startswith(("val/", "test/")):
                    last[name] = trained, value
    rows = [(name, f"{value:.5g}") for name, (_, value) in last.items()]
    return markdown_table(("metric", "value"), rows) if rows else ""


def _format_evaluation(folder: Path) -> tuple[str, str]:
    """Format the figures that `zoo evaluate` wrote into a folder as a table; FileNotFoundError when there are none."""
    for path in (folder / "summary.csv", folder / "evaluation.csv"):
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as lines:
                head, *rows = csv.reader(lines)
            return folder.name, markdown_table(head, rows)
    raise FileNotFoundError(f"{folder} holds no evaluation (summary.csv or evaluation.csv)")


def copy_samples(run: Path, folder: Path, address: str) -> str:
    """Copy the newest images and sounds of a run into `folder/samples`; return markdown that shows them."""
    lines: list[str] = []
    for file in run_info.newest_samples(run):
        if len(lines) == MAX_SAMPLES:
            break
        is_sound = file.suffix in SOUNDS
        if not (is_sound or file.suffix in IMAGES) or file.is_symlink() or file.stat().st_size > MAX_SAMPLE_BYTES:
            continue
        (folder / "samples").mkdir(exist_ok=True)
        shutil.copyfile(file, folder / "samples" / file.name)
        url, title = f"samples/{quote(file.name)}", file.stem
        lines.append(f'{title}: <audio controls src="{address}/{url}"></audio>' if is_sound else f"![{title}]({url})")
    return "\n\n".join(lines)
