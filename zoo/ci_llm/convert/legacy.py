"""The command of the original, `train.py --config configs.yaml --resume_from_checkpoint X`, in the words of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.ci_llm.convert.read import PROGRESS, is_original_folder, read_json
from zoo.ci_llm.convert.recipe import convert_config
from zoo.common.options import take_option
from zoo.common.reading.text import safe_load
from zoo.common.systems import recipe_root
from zoo.convert import old_calls
from zoo.convert.old_calls import Call, shown
from zoo.runs.checkpoints import find_checkpoints, step_of

CONFIG = "configs.yaml"  # that the original reads when none is named
OUTPUT = "ci_llm_output"
HANDLED = ("output_dir", "resume_from_checkpoint")  # here, not by the recipe


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """Translate a call of the old script, see `zoo.convert.old_calls.command`."""
    return old_calls.command(translate, arguments)


def translate(arguments: Sequence[str], environment: Mapping[str, str]) -> Call:
    """Translate a call; the recipe is written beside the original's configuration, as `<name>.zoo.yaml`.

    Args:
        arguments: `--config FILE`, the original's configuration (`configs.yaml` when not given; further ones are
            fragments of ours); `--resume_from_checkpoint PATH`, a checkpoint or run folder of ours or a checkpoint
            folder of the original; and options of `zoo fit`, which are passed on.
        environment: variables of a launcher.

    Raises:
        FileNotFoundError: when there is no such configuration, or nothing to resume from.
        ValueError: when it is no configuration of CI-LLM, or a value cannot be.
    """
    configs, rest = take_option(list(arguments), "--config")
    resumes, rest = take_option(rest, "--resume_from_checkpoint")
    original, *fragments = configs or [CONFIG]
    recipe, left = convert_config(original)
    settings = safe_load(Path(original).read_text(encoding="utf-8"))
    # one process a device, as many as the launcher has started
    devices, nodes = old_calls.processes(environment)
    if settings.get("max_train_steps") is None:  # a number that was asked for stays
        old_calls.share_steps(recipe, devices * nodes)
    flags = [f"--trainer.devices={devices}", f"--trainer.num_nodes={nodes}"]
    if devices * nodes > 1:
        fragments.insert(0, shown(recipe_root() / "trainer" / "ddp.yaml"))
    if old_calls.is_on_cpu(environment):
        flags.append("--trainer.accelerator=cpu")
        if recipe["trainer"]["precision"] == "16-mixed":
            recipe["trainer"]["precision"] = "32-true"  # fp16 needs a GPU
    notes = [f"not translated: {each}" for each in left if each.partition(":")[0] not in HANDLED]
    start, more = _start(resumes[-1] if resumes else settings.get("resume_from_checkpoint"))
    if not start.startswith("--ckpt_path"):  # a run that is taken up again goes on in its own folder
        flags.append(f"--trainer.default_root_dir={settings.get('output_dir') or OUTPUT}")
    written = old_calls.write_recipe(recipe, Path(original), "scripts/train_ci_llm.py")
    options = [part for config in (written, *fragments) for part in ("--config", config)]
    return Call(["fit", *options, *flags, *filter(None, [start]), *rest], notes + more)


def _start(resume: str | None) -> tuple[str, list[str]]:
    """The option that takes up training, empty without one, and notes."""
    if resume in (None, "", "null", "None"):
        return "", []
    path = Path(str(resume))
    if not path.exists():
        raise FileNotFoundError(
            f"resume_from_checkpoint: nothing at {path}; name a run, a .ckpt file or a checkpoint_step_<n> folder"
        )
    if not is_original_folder(path):
        return f"--ckpt_path={path}", []
    step = read_json(path / PROGRESS).get("global_step") if (path / PROGRESS).is_file() else None
    ours = [each for each in find_checkpoints(path.parent, "step_*.ckpt") if step_of(each) == step]
    if ours:  # the folder was written beside a checkpoint of ours
        return f"--ckpt_path={ours[0]}", []
    return f"--init_from={path}", [
        f"{path} is of the original: its adapters are taken, optimizer, schedule and data begin anew"
    ]
