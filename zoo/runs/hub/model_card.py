"""The model card of a run: what it is, what it was trained on, how well it does, how to use it."""

from __future__ import annotations

import csv
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from zoo import __version__
from zoo.common.reports import markdown_table, subplot_grid, write_figure
from zoo.runs import run_folder, run_info
from zoo.runs.frozen import describe_record
from zoo.runs.run_info import SUMMARY_KEYS

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

UNKNOWN = "unknown"  # the hub's word for a licence that is not stated
AUDIO, IMAGES = (".wav", ".flac", ".ogg", ".mp3"), (".png", ".gif", ".jpg")
MAX_CELL = 300  # characters
CURVE_NAME = "curve.png"
EVALUATIONS = ("summary.csv", "evaluation.csv")  # what `zoo evaluate` writes

TEMPLATE = """---
{{ card_data }}
---
# {{ title }}

{{ about }}

A `{{ inference }}` of zoo {{ version }}{% if step %}, {{ step }} steps of `{{ recipe or "its recipe" }}`{% endif %}.

## Use

```python
{{ usage }}
```

```bash
zoo predict --ckpt_path {{ name }} --input PATH --output FOLDER
```
{% if adapters %}
The adapters are also in PEFT's layout, a folder for each agent ({{ adapters | join(", ") }}):

```python
from peft import PeftModel

model = PeftModel.from_pretrained(base, "{{ repo }}", subfolder="{{ adapters[0] }}")
```
{% endif %}{% if onnx %}
For onnxruntime: {% for graph in onnx %}`{{ graph }}`{{ ", " if not loop.last }}{% endfor %}.
{% endif %}
## Training

{{ settings }}
{% if trained %}
All settings: `training.yaml`.
{% endif %}{% if curve %}
![Training curves](curve.png)
{% endif %}
## Results

{{ results or "No figures: the run has none, and no evaluation was named." }}
{% if "[" in results %}
Intervals are of 95 %.
{% endif %}{% if samples %}
## Samples

Of the run's newest validation.

{{ samples }}
{% endif %}
## Data and licence

- Weights: {{ licence or "not stated by whoever pushed them" }}.
{% for source in sources %}- {{ source.title }}: {{ source.licence }}.
{% else %}- Data: {{ data or "unknown" }}; its licence is not known to the zoo.
{% endfor %}
{% if sources | rejectattr("commercial") | list %}
**Non-commercial**: weights made with what is named so above inherit that condition.
{% endif %}{% if known %}
## Limits

{{ known.limits }}
{% if is_small %}
Its recipe shows that training works in seconds or minutes: its results are those of a small model.
{% endif %}
## Citation

{{ known.paper }}.
{% endif %}"""


class System(NamedTuple):
    """What a card says of all models of a system.

    Args:
        task: one of the hub's names of tasks.
        paper: authors, title, number and year.
        limits: what not to expect.
    """

    task: str
    paper: str
    limits: str


SYSTEMS = {
    "hifigan": System(
        "audio-to-audio",
        "Kong, Kim, Bae: HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech "
        "Synthesis, arXiv:2010.05646, 2020",
        "It vocodes features that were made like those of its training; others, and voices or sounds unlike its "
        "training data, come out worse.",
    ),
    "flow": System(
        "unconditional-image-generation",
        "Lipman et al.: Flow Matching for Generative Modeling, arXiv:2210.02747, 2023",
        "It draws what its training data holds, with that data's gaps and biases, at their resolution.",
    ),
    "miipher": System(
        "audio-to-audio",
        "Karita et al.: Miipher-2: A Universal Speech Restoration Model for Million-Hour Scale Data Restoration, "
        "arXiv:2505.04457, 2025",
        "It restores speech; music and noise are lost. What cannot be heard in the input is made up.",
    ),
    "audiosr": System(
        "audio-to-audio",
        "Liu et al.: AudioSR: Versatile Audio Super-resolution at Scale, arXiv:2309.07314, 2023",
        "What lies above the input's band is made up: likely, not measured.",
    ),
    "ci_llm": System(
        "text-generation",
        "Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685, 2021",
        "The agents have the knowledge, the errors and the biases of their base model; answers can be wrong.",
    ),
    "compressed_ad": System(
        "reinforcement-learning",
        "Laskin et al.: In-context Reinforcement Learning with Algorithm Distillation, arXiv:2210.14215, 2022",
        "It learns in tasks of the kind that it was trained on, within the context that it was trained with.",
    ),
}


class Source(NamedTuple):
    """A corpus or backbone whose licence is known.

    Args:
        pattern: of what a config calls it, in lower case.
        hub: its name on the hub, where there is one.
    """

    pattern: str
    title: str
    licence: str
    hub: str | None = None
    commercial: bool = True


# NOTICE of the zoo says where each is from.
CORPORA = (
    Source(r"lj_?speech", "LJSpeech", "public domain"),
    Source(r"vctk", "VCTK", "CC BY 4.0"),
    Source(r"libritts[-_]?r", "LibriTTS-R", "CC BY 4.0"),
    Source(r"fleurs[-_]r", "FLEURS-R", "CC BY 4.0"),
    Source(r"\bjvs", "JVS", "its own terms: research and personal use", commercial=False),
    Source(r"afhq", "AFHQ", "CC BY-NC 4.0", commercial=False),
    Source(r"gsm8k", "GSM8K", "MIT", "openai/gsm8k"),
)
BACKBONES = (
    Source(r"mhubert-147", "mHuBERT-147", "CC BY-NC-SA 4.0", commercial=False),
    Source(r"rinna/japanese-(hubert|wav2vec2)", "Japanese HuBERT and wav2vec 2.0 of rinna", "Apache-2.0"),
    Source(r"facebook/wav2vec2-large-xlsr-53", "XLSR-53", "Apache-2.0"),
    Source(r"google/gemma", "Gemma", "Gemma terms of use"),
)


class Metric(NamedTuple):
    """A figure of a run or its evaluation; `text` has the interval, where there is one."""

    where: str
    name: str
    value: float
    text: str


def metrics_of(run: Path, step: int | None) -> list[Metric]:
    """The last values of a run's validations and tests, up to a step."""
    found = []
    for file in (run_folder.CSV_NAME, "validate.csv", "test.csv"):
        for name, points in run_info.read_curves(run / file).items():
            values = [value for at, value in points if step is None or at <= step]
            if values and name.startswith(("val/", "test/")):
                found.append(Metric("this run", name, values[-1], f"{values[-1]:.5g}"))
    return list({metric.name: metric for metric in found}.values())


def read_evaluation(folder: Path) -> list[Metric]:
    """The figures with their intervals in what `zoo evaluate` wrote into a folder.

    Raises:
        FileNotFoundError: when it holds no table of them.
    """
    file = next((folder / name for name in EVALUATIONS if (folder / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} holds no evaluation ({' or '.join(EVALUATIONS)})")
    found = []
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            labels = [row[key] for key in ("system", "measure", "metric", "figure", "unit") if row.get(key)]
            for key in row:
                stem = "" if key in ("mean", "value") else key.removesuffix("_mean") if key.endswith("_mean") else None
                value = _number(row[key])
                if stem is None or value is None:
                    continue
                ends = [_number(row.get(f"{stem}_{end}" if stem else end)) for end in ("low", "high")]
                text = f"{value:.5g}" + ("" if None in ends else f" [{ends[0]:.5g}, {ends[1]:.5g}]")
                found.append(Metric(folder.name, " ".join([*labels, stem]).strip(), value, text))
    return found


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def draw_curve(run: Path, path: Path) -> bool:
    """Draw a run's losses, one panel each; whether there are any."""
    curves = run_info.read_curves(run / run_folder.CSV_NAME)
    shown = [key for key in run_info.select_loss_metrics(list(curves)) if len(curves[key]) > 1]
    if not shown:
        return False
    figure, grid = subplot_grid(len(shown), 4.0, 2.6)
    for key, axes in zip(shown, grid, strict=True):
        steps, values = zip(*curves[key], strict=True)
        axes.plot(steps, values, linewidth=1)
        axes.set(title=key, xlabel="batches")
        axes.grid(alpha=0.3)
    write_figure(path, figure)
    return True


def find_sources(texts: Iterable[str], known: Sequence[Source]) -> list[Source]:
    """The corpora or backbones that texts name."""
    text = "\n".join(texts).lower()
    return [source for source in known if re.search(source.pattern, text)]


def write_model_card(
    folder: Path,
    repo: str,
    system: str,
    recipe: str | None,
    config: Mapping[str, Any],
    frozen: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[Metric],
    licence: str,
    samples: Sequence[str],
    address: str,
    **texts: Any,
) -> None:
    """Write README.md, replacing the one of the export.

    Args:
        folder: what is pushed.
        repo: its name on the hub.
        system: of its task, such as flow.
        recipe: `<system>/<recipe>`, where the run says it.
        config: of the run.
        frozen: records of its frozen modules.
        metrics: of the run and its evaluations.
        licence: of the weights, one of the hub's names.
        samples: names of files in the folder `samples`.
        address: of the files on the hub.
        **texts: what else the template shows: about, inference, usage, name, step, adapters, onnx, curve, values.
    """
    from huggingface_hub import ModelCard

    known = SYSTEMS.get(system)
    flat = run_info.flatten_config(config)
    corpora = find_sources((str(value) for key, value in flat.items() if key.startswith("data.")), CORPORA)
    backbones = find_sources((str(record["source"]) for record in frozen.values()), BACKBONES)
    rows = [("recipe", f"`{recipe}`")] * bool(recipe)
    rows += [(name, f"`{flat[key]}`") for name, key in SUMMARY_KEYS.items() if flat.get(key, "null") != "null"]
    rows += [("values", f"{texts['values']:,}")]
    rows += [(f"frozen `{path}`", describe_record(record)) for path, record in frozen.items()]
    results = [(metric.name, metric.text, metric.where) for metric in metrics]
    card = ModelCard.from_template(
        card_metadata(repo, system, recipe, metrics, licence, base_models(config, frozen), corpora),
        template_str=TEMPLATE,
        version=__version__,
        title=repo.rpartition("/")[2],
        repo=repo,
        system=system,
        recipe=recipe,
        settings=_table(["", ""], rows),
        trained=bool(config),
        results=_table(["metric", "value", "from"], results) if results else "",
        samples="\n\n".join(_show_sample(name, address) for name in samples),
        licence=None if licence == UNKNOWN else licence,
        sources=[*corpora, *backbones],
        data=flat.get("data.class_path"),
        known=known,
        is_small=(recipe or "").rpartition("/")[2].startswith(("smoke", "demo")),
        **texts,
    )
    (folder / "README.md").write_text(card.content, encoding="utf-8")


def base_models(config: Mapping[str, Any], frozen: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the hub's models that a run is built on or began with."""
    initial = config.get("init_from") or []
    names = [initial] if isinstance(initial, str) else initial
    models = [record["source"] for record in frozen.values() if record["source"] and not record["folder"]]
    models += [name.removeprefix("hf://").partition("@")[0] for name in names if name.startswith("hf://")]
    return list(dict.fromkeys(models))


def card_metadata(
    repo: str,
    system: str,
    recipe: str | None,
    metrics: Sequence[Metric],
    licence: str,
    bases: Sequence[str],
    corpora: Sequence[Source],
) -> ModelCardData:
    """Return the YAML header of a card."""
    from huggingface_hub import EvalResult, ModelCardData

    known, data = SYSTEMS.get(system), recipe or system
    task = known.task if known else None
    results = [
        EvalResult(
            task_type=task or "other",
            dataset_type=data,
            dataset_name=data if metric.where == "this run" else metric.where,
            metric_type=re.sub(r"[^\w]+", "_", metric.name).strip("_"),
            metric_name=metric.name,
            metric_value=metric.value,
        )
        for metric in metrics
    ]
    return ModelCardData(
        library_name="zoo",
        license=licence,
        tags=["zoo", system, *([recipe.replace("/", "-")] if recipe else [])],
        pipeline_tag=task,
        base_model=list(bases) or None,
        datasets=[source.hub for source in corpora if source.hub] or None,
        model_name=repo,
        eval_results=results or None,
    )


def _show_sample(name: str, address: str) -> str:
    path, suffix = f"samples/{quote(name)}", Path(name).suffix
    if suffix in AUDIO:
        return f'{_cell(name)}: <audio controls src="{html.escape(address + path)}"></audio>'
    return f"{'!' if suffix in IMAGES else ''}[{_cell(Path(name).stem)}]({path})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(heads, [[_cell(each) for each in row] for row in rows])


def _cell(text: str) -> str:
    """A text of anybody's as a cell of a table: on one line, without marks that mean something there."""
    short = text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
    return html.escape(" ".join(short.split()), quote=False).replace("|", "\\|")
