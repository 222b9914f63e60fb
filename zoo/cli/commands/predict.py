"""`zoo predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from zoo.cli.log_filters import configure_logging
from zoo.cli.parser import PARSER_MODE, OneLineParser, restrict_imports, use_public_names
from zoo.cli.recipes import WrongNameError, nearest_names, split_arguments
from zoo.common import registry
from zoo.common.environment import exit_on_sigterm, local_device
from zoo.common.locks import writes_into
from zoo.common.reports import Row
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import is_export, read_components
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import content_digest, list_input_files, predict_files
from zoo.runs.inference.predict_ray import predict_with_ray
from zoo.runs.load import build_inference


@writes_into(positional=False)  # it locks the output folder itself: several processes may share one
def main(
    *model_options: str,
    ckpt_path: Path,
    input: Path,
    output: Path,
    overwrite: bool = False,
    device: str = "auto",
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true",
    shard: str | None = None,
    engine: Literal["ranks", "ray"] = "ranks",
    ray_address: str | None = None,
    ray_workers: int | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Row:
    """Run a checkpoint on files: predict --ckpt_path RUN --input PATH --output DIR.

    The same call again computes what is missing, failed or changed.

    Args:
        *model_options: `--model.KEY VALUE`, any option of the system's inference, such as a chunk length.
        ckpt_path: a run folder, a checkpoint, an export, `hf://user/name`, or `last` for the newest run.
        input: a file or a folder tree.
        output: folder for the results and manifest.jsonl.
        overwrite: compute finished files again, also those of another checkpoint or other options.
        device: cpu, cuda or mps; auto is a GPU where there is one.
        precision: of the computation.
        shard: I/N, the I-th of N parts from 1/N to N/N, for processes that are not started together.
        engine: who computes, this command or the actors of a Ray cluster.
        ray_address: host:port of Ray's head, or auto.
        ray_workers: actors; as many as the cluster has room for when not given.
        rank: of this process, as torchrun, accelerate or SLURM say.
        world_size: number of processes.
    """
    configure_logging()
    rank, world_size = parse_shard(shard, rank, world_size, engine)
    path = ckpt_path if is_export(ckpt_path) else find_checkpoint(ckpt_path)
    components = read_components(path)
    specs = components.description
    cls, options = parse_options(specs, model_options)
    files = list_input_files(input, output, cls.input_suffixes, cls.output_suffix)
    settings = {"checkpoint": content_digest(path), "inference": specs["inference"], "precision": precision}
    settings["options"] = {**specs.get("options", {}), **options}
    if engine == "ray":
        model = {"path": str(path.absolute()), "device": device, "allow_import": registry.allowed_packages(), **options}
        return predict_with_ray(model, files, output, settings, overwrite, precision, ray_address, ray_workers)
    with exit_on_sigterm():  # so that the file under way does not count as one that killed its process
        inference = build_inference(path, components, local_device(device), **options)
        return predict_files(inference, files, output, settings, overwrite, rank, world_size, precision)


def parse_options(specs: dict[str, Any], args: Sequence[str]) -> tuple[type[Inference], dict[str, Any]]:
    """Parse `--model.KEY VALUE` (or `--model.init_args.KEY`) by the types of the inference that a checkpoint describes.

    Returns the class of the inference, and the values of these options.
    """
    restrict_imports()
    cls: type[Inference] = registry.get_class(specs["inference"], Inference)
    parser = OneLineParser(prog="zoo predict", parser_mode=PARSER_MODE)
    option_names = parser.add_class_arguments(cls, "model", skip=set(specs["components"]), instantiate=False)
    keys = [name.removeprefix("model.") for name in option_names]
    parser.set_defaults({f"model.{key}": value for key, value in specs.get("options", {}).items() if key in keys})
    words, chosen_keys = [], []
    for option, value in split_arguments(args):
        if not option.startswith("--model."):
            raise WrongNameError(
                f"predict has no option {option or value}: it takes no recipe, Trainer or data; see --precision and "
                "--device, and for several GPUs torchrun --nproc-per-node=N -m zoo predict ..."
            )
        option = option.replace("--model.init_args.", "--model.", 1)
        key = option.removeprefix("--model.").partition(".")[0].removesuffix("+")
        if key not in keys:
            raise WrongNameError(f"{cls.__name__} has no option {key}{nearest_names(key, keys)} (options: {keys})")
        if value is None:
            raise WrongNameError(f"{option} needs a value")
        chosen_keys.append(key)
        words.append(f"{option}={value}")
    values = parser.parse_args(words).as_dict().get("model", {})
    use_public_names(values)
    return cls, {key: values[key] for key in chosen_keys}


def parse_shard(shard: str | None, rank: int, world_size: int, engine: str) -> tuple[int, int]:
    """Return the rank and number of all processes, where world_size processes compute each of N shards I/N."""
    number, _, total = (shard or "1/1").partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise ValueError(f"--shard {shard}: expected I/N, the I-th of N parts, from 1/N to N/N")
    if engine == "ray" and world_size * int(total) > 1:
        raise ValueError("--engine ray: start the command once, without --shard")
    return int(number) - 1 + int(total) * rank, int(total) * world_size
