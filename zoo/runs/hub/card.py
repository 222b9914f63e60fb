"""The model card of a run: what it is, what it was trained on, how well it does, how to use it."""

from __future__ import annotations

import csv
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from zoo import __version__
from zoo.common.report import markdown_table, panels, write_figure
from zoo.common.systems import systems
from zoo.runs import listing
from zoo.runs.details import SUMMARY
from zoo.runs.frozen import described

UNKNOWN = "unknown"  # the hub's word for a licence that is not stated
AUDIO, IMAGES = (".wav", ".flac", ".ogg", ".mp3"), (".png", ".gif", ".jpg")
SHOWN_ROWS = 8  # of a table of samples
SHOWN_CHARACTERS = 300  # of a cell
CURVE_NAME = "curve.png"
EVALUATIONS = ("summary.csv", "evaluation.csv")  # what `zoo evaluate` writes


class System(NamedTuple):
    """What a card says of all models of a system.

    Args:
        task: one of the hub's names of tasks.
        paper: authors, title, venue or arXiv number, year.
        limits: what not to expect.
    """

    task: str
    paper: tuple[str, str, str, int]
    limits: str


SYSTEMS = {
    "hifigan": System(
        "audio-to-audio",
        (
            "Kong, Jungil and Kim, Jaehyeon and Bae, Jaekyoung",
            "HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech Synthesis",
            "arXiv:2010.05646",
            2020,
        ),
        "It vocodes features that were made like those of its training; others, and voices or sounds unlike its "
        "training data, come out worse.",
    ),
    "flow": System(
        "unconditional-image-generation",
        (
            "Lipman, Yaron and Chen, Ricky T. Q. and Ben-Hamu, Heli and Nickel, Maximilian and Le, Matt",
            "Flow Matching for Generative Modeling",
            "arXiv:2210.02747",
            2023,
        ),
        "It draws what its training data holds, with that data's gaps and biases, at their resolution.",
    ),
    "miipher": System(
        "audio-to-audio",
        (
            "Karita, Shigeki and others",
            "Miipher-2: A Universal Speech Restoration Model for Million-Hour Scale Data Restoration",
            "arXiv:2505.04457",
            2025,
        ),
        "It restores speech; music and noise are lost. What cannot be heard in the input is made up.",
    ),
    "audiosr": System(
        "audio-to-audio",
        (
            "Liu, Haohe and Chen, Ke and Tian, Qiao and Wang, Wenwu and Plumbley, Mark D.",
            "AudioSR: Versatile Audio Super-resolution at Scale",
            "arXiv:2309.07314",
            2023,
        ),
        "What lies above the input's band is made up: likely, not measured.",
    ),
    "ci_llm": System(
        "text-generation",
        (
            "Hu, Edward J. and others",
            "LoRA: Low-Rank Adaptation of Large Language Models",
            "arXiv:2106.09685",
            2021,
        ),
        "The agents have the knowledge, the errors and the biases of their base model; answers can be wrong.",
    ),
    "compressed_ad": System(
        "reinforcement-learning",
        (
            "Laskin, Michael and others",
            "In-context Reinforcement Learning with Algorithm Distillation",
            "arXiv:2210.14215",
            2022,
        ),
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


@dataclass
class About:
    """What a card is made of.

    Attributes:
        repo: its name on the hub, `name` the one with which zoo loads it, `address` where its files are.
        package: of its system; `inference` is the class that it loads as.
        usage: Python lines that load and call it.
        run: folder that it was trained in, where there is one.
        step: batches trained.
        config: of the run.
        frozen: records of its frozen parts.
        samples: names of the files in the card's folder `samples`; `left_out` are too large or too many.
        adapters: folders that peft loads.
    """

    repo: str
    name: str
    address: str
    package: str
    inference: str
    usage: str
    values: int
    step: int | None = None
    run: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    frozen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: Sequence[str] = ()
    left_out: int = 0
    curve: bool = False
    metrics: Sequence[Metric] = ()
    licence: str = UNKNOWN
    adapters: Sequence[str] = ()
    onnx: Sequence[str] = ()

    @property
    def system(self) -> str:
        """Name of its system."""
        return self.package.rpartition(".")[2]

    @property
    def recipe(self) -> str | None:
        """`<system>/<recipe>`, where the run says it."""
        return None if self.run is None else listing.recorded_recipe(self.run / listing.CONFIG_NAME)

    @property
    def bases(self) -> list[str]:
        """Models of the hub that it is built on or began with."""
        given = self.config.get("init_from") or []
        begun = [given] if isinstance(given, str) else given
        names = [re.fullmatch(r"hf://([^@]+)(@.+)?", each) for each in begun if isinstance(each, str)]
        sources = [record["source"] for record in self.frozen.values() if record["source"] and not record["folder"]]
        return list(dict.fromkeys([*sources, *(found[1] for found in names if found)]))

    def corpora(self) -> list[Source]:
        """Corpora that its data's settings name."""
        return _named(map(str, listing.flatten(self.config.get("data") or {}).values()), CORPORA)

    def backbones(self) -> list[Source]:
        """Backbones with known licences that it is built on."""
        return _named((str(record["source"]) for record in self.frozen.values()), BACKBONES)


def _named(texts: Iterable[str], known: Sequence[Source]) -> list[Source]:
    said = "\n".join(texts).lower()
    return [source for source in known if re.search(source.pattern, said)]


def metrics_of(run: Path, step: int | None) -> list[Metric]:
    """The last values of a run's validations and tests, up to a step."""
    found = []
    for file in (listing.CSV_NAME, "validate.csv", "test.csv"):
        for name, points in listing.read_curves(run / file).items():
            values = [value for at, value in points if step is None or at <= step]
            if values and name.startswith(("val/", "test/")):
                found.append(Metric("this run", name, values[-1], f"{values[-1]:.5g}"))
    return list({metric.name: metric for metric in found}.values())


def evaluated(folder: Path) -> list[Metric]:
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
    curves = listing.read_curves(run / listing.CSV_NAME)
    shown = [key for key in listing.losses_of(list(curves)) if len(curves[key]) > 1]
    if not shown:
        return False
    figure, grid = panels(len(shown), 4.0, 2.6)
    for key, axes in zip(shown, grid, strict=True):
        steps, values = zip(*curves[key], strict=True)
        axes.plot(steps, values, linewidth=1)
        axes.set(title=key, xlabel="batches")
        axes.grid(alpha=0.3)
    write_figure(path, figure)
    return True


def write_card(folder: Path, about: About) -> None:
    """Write README.md, replacing the one of the export."""
    from huggingface_hub import EvalResult, ModelCardData

    known = SYSTEMS.get(about.system)
    data = {"type": about.recipe or about.system, "name": about.recipe or about.system}
    results = [
        EvalResult(
            task_type=known.task if known else "other",
            dataset_type=data["type"],
            dataset_name=data["name"] if metric.where == "this run" else metric.where,
            metric_type=re.sub(r"[^\w]+", "_", metric.name).strip("_"),
            metric_name=metric.name,
            metric_value=metric.value,
        )
        for metric in about.metrics
    ]
    front = ModelCardData(
        library_name="zoo",
        license=about.licence,
        tags=["zoo", about.system, *([about.recipe.replace("/", "-")] if about.recipe else [])],
        pipeline_tag=known.task if known else None,
        base_model=about.bases or None,
        datasets=[source.hub for source in about.corpora() if source.hub] or None,
        model_name=about.repo,
        eval_results=results or None,
    )
    parts = [_head(about), _use(about), _training(about), _figures(about), _samples(about, folder), _licence(about)]
    parts += [_limits(about), _citation(about)]
    text = f"---\n{front.to_yaml()}\n---\n" + "\n\n".join(part for part in parts if part) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _head(about: About) -> str:
    title = next((each.title for each in systems() if each.package == about.package), about.package)
    trained = f", {about.step:,} batches of `{about.recipe or 'its recipe'}`" if about.step else ""
    return f"# {about.repo.rpartition('/')[2]}\n\n{title}\n\nA `{about.inference}` of zoo {__version__}{trained}."


def _use(about: About) -> str:
    shell = f"zoo predict --ckpt_path {about.name} --input PATH --output FOLDER"
    lines = ["## Use", "", f"```python\n{about.usage.strip()}\n```", "", f"```bash\n{shell}\n```"]
    if about.adapters:
        first = about.adapters[0]
        lines += ["", f"The adapters are also in PEFT's layout, one folder an agent ({', '.join(about.adapters)}):", ""]
        lines += [f'```python\nfrom peft import PeftModel\n\nmodel = PeftModel.from_pretrained(base, "{about.repo}", ']
        lines[-1] += f'subfolder="{first}")\n```'
    if about.onnx:
        lines += ["", f"For onnxruntime: {', '.join(f'`{name}`' for name in about.onnx)}."]
    return "\n".join(lines)


def _training(about: About) -> str:
    flat = listing.flatten(about.config)
    rows = [(name, f"`{flat[key]}`") for name, key in SUMMARY.items() if flat.get(key, "null") != "null"]
    rows = [("recipe", f"`{about.recipe}`")] * bool(about.recipe) + rows
    rows += [("batches", f"{about.step:,}")] * bool(about.step) + [("values", f"{about.values:,}")]
    rows += [(f"frozen `{path}`", described(record)) for path, record in about.frozen.items()]
    curve = f"\n\n![Training curves]({CURVE_NAME})" if about.curve else ""
    whole = "\n\nAll settings: `training.yaml`." if about.config else ""
    return f"## Training\n\n{markdown_table(['', ''], [[_cell(each) for each in row] for row in rows])}{whole}{curve}"


def _figures(about: About) -> str:
    if not about.metrics:
        return "## Results\n\nNo figures: the run has none, and no evaluation was named."
    rows = [[metric.name, metric.text, metric.where] for metric in about.metrics]
    note = "Intervals are of 95 %." if any("[" in metric.text for metric in about.metrics) else ""
    lone = "A value without an interval is of one validation." if any("[" not in m.text for m in about.metrics) else ""
    table = markdown_table(["metric", "value", "from"], [[_cell(each) for each in row] for row in rows])
    return f"## Results\n\n{table}\n\n{' '.join(filter(None, (note, lone)))}"


def _samples(about: About, folder: Path) -> str:
    if not about.samples:
        return ""
    lines = ["## Samples", "", "Of the run's newest validation."]
    for name in about.samples:
        path, suffix = f"samples/{name}", Path(name).suffix
        lines += ["", f"{Path(name).stem}:", ""]
        if suffix in AUDIO:
            lines.append(f'<audio controls src="{html.escape(about.address + quote(path))}"></audio>')
        elif suffix in IMAGES:
            lines.append(f"![{Path(name).stem}]({quote(path)})")
        else:
            with (folder / path).open(newline="", encoding="utf-8") as file:
                heads, *rows = list(csv.reader(file)) or [[]]
            lines.append(markdown_table(list(map(_cell, heads)), [list(map(_cell, row)) for row in rows[:SHOWN_ROWS]]))
    more = [f"{about.left_out} more stayed in the run: too large, or too many."] if about.left_out else []
    return "\n".join([*lines, *(["", *more] if more else [])])


def _cell(text: str) -> str:
    """A text of anybody's as a cell of a table: on one line, without marks that mean something there."""
    short = text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
    return html.escape(" ".join(short.split()), quote=False).replace("|", "\\|")


def _licence(about: About) -> str:
    said = about.licence if about.licence != UNKNOWN else "not stated by whoever pushed them"
    lines = ["## Data and licence", "", f"- Weights: {said}."]
    data = listing.flatten(about.config).get("data.class_path")
    known = [*about.corpora(), *about.backbones()]
    lines += [f"- {source.title}: {source.licence}." for source in known]
    if not known:
        lines.append(f"- Data: {f'`{data}`' if data else 'unknown'}; its licence is not known to the zoo.")
    if non_commercial(about):
        lines.append("- **Non-commercial**: weights made with what is named so above inherit that condition.")
    return "\n".join(lines)


def non_commercial(about: About) -> list[str]:
    """Titles of what it was made with that forbids commercial use."""
    return [source.title for source in (*about.corpora(), *about.backbones()) if not source.commercial]


def _limits(about: About) -> str:
    known = SYSTEMS.get(about.system)
    lines = [known.limits] if known else []
    if about.recipe and about.recipe.rpartition("/")[2].startswith(("smoke", "demo")):
        lines.append(
            "Its recipe shows that training works in seconds or minutes: its results are those of a small model."
        )
    return "## Limits\n\n" + " ".join(lines) if lines else ""


def _citation(about: About) -> str:
    known = SYSTEMS.get(about.system)
    if known is None:
        return ""
    authors, title, venue, year = known.paper
    entry = f"@misc{{{about.system}{year},\n  author = {{{authors}}},\n  title = {{{title}}},\n"
    return f"## Citation\n\n```bibtex\n{entry}  year = {{{year}}},\n  note = {{{venue}}}\n}}\n```"
