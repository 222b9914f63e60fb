"""Smoke recipes run fit, resume and predict; test_meta_device.py builds all recipes."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import yaml

from tests.conftest import reference_folder
from tests.harness import REPOSITORY, TOY_ARGS, TOY_RECIPE, newest
from tests.harness import SMOKE as VOCODER
from tests.logged import offline_runs, records, values
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.cli.main import main
from zoo.runs.load import load
from zoo.runs.metrics_csv import read_metrics
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.task import ZooTask

pytestmark = pytest.mark.usefixtures("working_folder")
RECIPES = sorted((REPOSITORY / "configs").glob("*/*.yaml"))
FRAGMENTS = [path for path in RECIPES if path.parent.name == "trainer"]
SMOKE = [path for path in RECIPES if path.name.startswith("smoke")]
DISPLAYED = (  # a recipe a system, which goes through all commands
    *(f"{system}-smoke" for system in ("audiosr", "ci_llm", "compressed_ad", "flow", "hifigan")),
    "miipher-smoke_finetune",
)
LOGGED = ("ci_llm-smoke", "flow-smoke", "hifigan-smoke")  # samples of every kind, which W&B gets as well
LIMITS = ["--trainer.val_check_interval=3", "--checkpoints.every_n_steps=3", "--trainer.log_every_n_steps=1"]


def name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def without_downloads(recipe: dict[str, Any]) -> dict[str, Any]:
    """What to lay over a recipe so that backbones with a source become small random ones of the same width."""
    generator = recipe["model"]["init_args"].get("generator", {"init_args": {}})
    width = generator["init_args"].get("in_channels", 32)
    net = recipe["model"]["init_args"].get("net", {"init_args": {}})
    mel = recipe["model"]["init_args"].get("features") or {"init_args": {}}

    def small(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        path, arguments = value.get("class_path"), value.get("init_args", {})
        if path == "zoo.ci_llm.Backbone" and arguments.get("source"):
            config = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
            config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 400}
            return {"init_args": {"source": None, "quantization": "none", "config": config}}
        if path == "zoo.miipher.Backbone" and arguments.get("source"):
            layers = value["init_args"]["layer"]
            config = {"model_type": "hubert", "hidden_size": width, "num_attention_heads": 4, "intermediate_size": 8}
            config |= {"num_hidden_layers": layers, "conv_dim": [8] * 7, "num_conv_pos_embedding_groups": 4}
            return {"init_args": {"source": None, "config": config}}
        if path == "zoo.audiosr.FrozenAutoencoder" and arguments.get("source"):
            latents = net["init_args"]["unet"]["init_args"]["out_channels"]
            config = {"in_channels": 1, "out_channels": 1, "block_out_channels": [4, 4], "layers_per_block": 1}
            config |= {"latent_channels": latents, "norm_num_groups": 2}
            return {"init_args": {"source": None, "config": config}}
        if path == "zoo.hifigan.EncodecFeatures" and arguments.get("source"):
            config = {"num_filters": 2, "num_lstm_layers": 1, "codebook_size": 4, "codebook_dim": width}
            return {"init_args": {"source": None, "config": {**config, "hidden_size": width}}}
        if path == "zoo.flow.FrozenAutoencoder" and arguments.get("source"):
            config = {"block_out_channels": [2, 2, 2, 2], "layers_per_block": 1, "norm_num_groups": 1}
            return {
                "init_args": {"source": None, "config": {**config, "latent_channels": net["init_args"]["in_channels"]}}
            }
        if path == "zoo.flow.FrozenText" and arguments.get("source"):
            config = {"model_type": "t5", "d_model": net["init_args"]["context_dim"], "d_kv": 4, "d_ff": 8}
            return {"init_args": {"source": None, "config": {**config, "num_layers": 1, "vocab_size": 384}}}
        if path == "zoo.audiosr.FrozenVocoder" and arguments.get("source"):
            hop = mel["init_args"]["hop_length"]
            config = {"in_channels": mel["init_args"]["n_mels"], "initial_channels": 2, "upsample_rates": [hop]}
            config |= {"upsample_kernel_sizes": [hop], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]]}
            return {"init_args": {"source": None, "config": config}}
        if path == "zoo.audiosr.FrozenDenoiser" and arguments.get("source"):
            unet = net["init_args"]["unet"]["init_args"]
            return {"init_args": {"source": None, "config": {"unet": {**unet, "channels": min(unet["channels"], 32)}}}}
        if path == "zoo.audiosr.UNet" and arguments["channels"] > 64:
            return {"init_args": {"channels": 32}}  # the original's sizes take seconds to build
        if path == "zoo.blocks.AutoencoderKL" and arguments["block_out_channels"][0] > 64:
            return {"init_args": {"block_out_channels": [32] * len(arguments["block_out_channels"])}}
        results = {key: small(each) for key, each in value.items()}
        return {key: each for key, each in results.items() if each} or None

    return small(recipe) or {}


@pytest.mark.parametrize(("recipe", "extra"), [*((path, ()) for path in SMOKE), (TOY_RECIPE, TOY_ARGS)], ids=str)
def test_smoke_recipe_is_trained_resumed_and_used(
    recipe: Path, extra: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: set[str] = set()

    def note(callback: TrainingMetrics, trainer: L.Trainer, task: ZooTask) -> None:
        if task.automatic_optimization and not task.find_unused_parameters:
            unused.update(name for name, each in task.named_parameters() if each.requires_grad and each.grad is None)

    monkeypatch.setattr(TrainingMetrics, "on_after_backward", note)
    loggers = ["--loggers=[wandb]"] if name(recipe) in LOGGED else []
    assert main(["fit", "--config", str(recipe), *extra, *loggers, *LIMITS, "--trainer.max_steps=4"]) == 0
    (run,) = tmp_path.glob("runs/*/*/*")
    if loggers:
        assert_samples_are_in_wandb(run)
    assert newest(run).name == "step_00000004.ckpt"
    assert {"config.yaml", "metrics.csv", "train.log"} <= {path.name for path in run.iterdir()}
    assert not unused  # DDP would stop at the second step
    if name(recipe) in DISPLAYED or extra:
        assert main(["validate", "--ckpt_path", str(run), *extra]) == 0
        assert main(["test", "--ckpt_path", "last", *extra]) == 0
        assert main(["inspect", str(run)]) == 0
    assert main(["fit", "--ckpt_path", "last", "--trainer.max_steps=6", "--loggers=[]", *extra]) == 0
    assert newest(run).name == "step_00000006.ckpt"
    steps = [int(row["step"]) for row in read_metrics(run) if row.get("train/g/total") or row.get("train/loss")]
    assert steps == list(range(6))

    inputs = tmp_path / "inputs"
    model = load(run, allow_import=extra[1:])
    source = model.write_example(inputs / "deep" / "a")
    assert source.suffix in model.input_suffixes
    broken = inputs / f"broken{source.suffix}"
    broken.write_bytes(b"no input")
    args = ["predict", "--ckpt_path", str(run), "--input", str(inputs), "--output", "out", *extra]
    assert main(args) == 1
    rows = {Path(row["source"]).name: row for row in map(json.loads, open("out/manifest.jsonl"))}
    assert (rows[source.name]["status"], rows[broken.name]["status"]) == ("done", "failed")
    assert (tmp_path / "out" / rows[source.name]["target"]).stat().st_size > 64  # more than a header


NEWER = ("hifigan/smoke_bigvgan", "hifigan/smoke_vocos", "miipher/smoke_vocos")


@pytest.mark.parametrize("recipe", NEWER)
def test_generators_and_losses_take_bf16(recipe: str, tmp_path: Path) -> None:
    few = ("--trainer.max_steps=2", "--trainer.limit_val_batches=0", f"--trainer.default_root_dir={tmp_path}")
    assert main(["fit", recipe, "--trainer.precision=bf16-mixed", *few]) == 0
    model = load(tmp_path)
    assert all(value.isfinite().all() for part in model.modules().values() for value in part.state_dict().values())
    assert model.dry_run()


# file in media/ -> how W&B calls it
KINDS = {".wav": "audio-file", ".png": "images/separated", ".gif": "videos", ".csv": "table-file"}


def assert_samples_are_in_wandb(run: Path) -> None:
    """What lies in media/ is in the offline run of W&B as well."""
    kinds = {path.suffix for path in run.glob("media/step_*/*")}
    assert kinds
    (offline,) = offline_runs(run)
    logged = " ".join(str(value) for each in records(offline, "history") for value in values(each.item).values())
    assert all(KINDS[kind] in logged for kind in kinds), (kinds, logged[:2000])


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=name)
def test_trainer_fragment_merges_into_a_recipe(fragment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", str(VOCODER), "--config", str(fragment), "--print_config"]) == 0
    merged = yaml.safe_load(capsys.readouterr().out)["trainer"]
    options = yaml.safe_load(fragment.read_text())
    assert set(options) == {"trainer"}
    plain = {key: value for key, value in options["trainer"].items() if not isinstance(value, dict | list)}
    assert merged.items() >= plain.items()


def test_print_config_round_trips_and_its_sample_rate_is_given_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fit", "--config", str(VOCODER), "--data.init_args.sample_rate=16000", "--print_config"])
    first = capsys.readouterr().out
    model = yaml.safe_load(first)["model"]["init_args"]
    assert model["sample_rate"] == model["mel"]["init_args"]["sample_rate"] == 16000
    (tmp_path / "printed.yaml").write_text(first)
    main(["fit", "--config", str(tmp_path / "printed.yaml"), "--print_config"])
    again = capsys.readouterr().out
    assert again == first.replace("# recipe: hifigan/smoke", f"# recipe: {tmp_path.name}/printed")


def test_a_run_is_started_continued_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    args = ["fit", "--config", str(TOY_RECIPE), *TOY_ARGS, "--ckpt_path", "auto"]
    assert main([*args, "--trainer.max_steps=5"]) == 0
    assert main([*args, "--trainer.max_steps=10"]) == 0
    (run,) = tmp_path.glob("runs/toy_system/smoke/*")
    assert newest(run).name == "step_00000010.ckpt"
    older = ["--ckpt_path", str(run / "step_00000005.ckpt"), "--trainer.max_steps=7"]
    assert main(["fit", *TOY_ARGS, *older]) == 0
    (other,) = set(tmp_path.glob("runs/toy_system/smoke/*")) - {run}
    assert [newest(folder).name for folder in (run, other)] == ["step_00000010.ckpt", "step_00000007.ckpt"]
    assert main([*args[:-2], f"--trainer.default_root_dir={run}"]) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert main([*args[:-2], f"--trainer.default_root_dir={run.parent}"]) == 1
    assert "holds other runs" in capsys.readouterr().err
    assert main(["fit", *TOY_ARGS, "--ckpt_path", str(run), "--trainer.default_root_dir=elsewhere"]) == 1
    assert "elsewhere" in capsys.readouterr().err
    limits = tmp_path / "limits.yaml"  # names no model: the run brings it
    limits.write_text(f"trainer: {{max_steps: 12, default_root_dir: {run}}}\n")
    assert main(["fit", *TOY_ARGS, "--ckpt_path", "auto", str(limits), f"--init_from={other}"]) == 0
    assert newest(run).name == "step_00000012.ckpt" and "has no effect on a resume" in caplog.text
    assert yaml.safe_load((run / "config.yaml").read_text())["init_from"] is None
    newest(run).rename(run / "final.ckpt")
    assert main(["validate", *TOY_ARGS, "--ckpt_path", str(run / "final.ckpt")]) == 0
    assert (run / "validate.csv").read_text().splitlines()[1].startswith("12,")  # no number in the name


def test_weights_of_an_original_begin_and_predict_but_do_not_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "hifigan", str(reference_folder("hifigan") / "g_00000123"), "golden.ckpt"]) == 0
    assert main(["fit", "hifigan/smoke", "--ckpt_path", "golden.ckpt"]) == 1
    assert "--init_from" in capsys.readouterr().err
    files.write("in.wav", SyntheticSpeech(22050).utterance(0)[:11025], 22050)
    args = ["predict", "--ckpt_path", "golden.ckpt", "--input", "in.wav", "--output", "out"]
    assert main(args) == 0
    assert files.info("out/in.wav").samples == 11025
