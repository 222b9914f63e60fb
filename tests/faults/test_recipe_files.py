"""No text of a recipe becomes an import, an unpickling strategy, a request or a path outside, by a library's syntax."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.attempts import parse_and_build
from tests.harness import TOY_RECIPE, in_fork
from zoo.common import registry
from zoo.common.configs import check_config_paths

LIGHTNING = "lightning.pytorch"
SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
MODULES = {"FSDPStrategy": "fsdp", "DeepSpeedStrategy": "deepspeed", "ModelParallelStrategy": "model_parallel"}
SHORTHANDS = (
    "fsdp", "FSDP", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2",
    "deepspeed_stage_2_offload", "deepspeed_stage_3", "deepspeed_stage_3_offload", "deepspeed_stage_3_offload_nvme",
    "xla", "xla_debug", "single_xla", "single_tpu", "model_parallel", "bait:Thing", "bait.Thing",
)  # fmt: skip


def part(path: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": arguments}


def wandb(**arguments: Any) -> dict[str, Any]:
    return {"class_path": f"{LIGHTNING}.loggers.WandbLogger", "init_args": {"offline": True}, "dict_kwargs": arguments}


SPELLINGS = [
    *SHORTHANDS,
    *(f"{LIGHTNING}.strategies.{name}" for name in SHARDED),
    *(part(name) for name in SHARDED),
    *(part(f"{LIGHTNING}.strategies.{MODULES[name]}.{name}") for name in SHARDED),
    *(part(f"lightning.fabric.strategies.{name}") for name in SHARDED),
]
DDP = f"{LIGHTNING}.strategies.DDPStrategy"
CALLBACKS = f"{LIGHTNING}.callbacks"
# What jsonargparse and Lightning would import, call or unpickle.
TRAINER: dict[str, dict[str, Any]] = {
    "function as hook": {"strategy": part(DDP, ddp_comm_hook="os.system")},
    "class as hook": {"strategy": part(DDP, ddp_comm_hook="bait.Thing")},
    "files of Lightning": {"strategy": part(DDP, checkpoint_io=part(f"{LIGHTNING}.plugins.TorchCheckpointIO"))},
    "cluster of nobody": {"strategy": part(DDP, cluster_environment=part("bait.Thing"))},
    "plugin for files": {"plugins": [part(f"{LIGHTNING}.plugins.AsyncCheckpointIO")]},
    "plugin of FSDP": {"plugins": [part(f"{LIGHTNING}.plugins.FSDPPrecision", precision="32-true")]},
    "plugin by a text": {"plugins": "bait.Thing"},
    "accelerator by a text": {"accelerator": "bait.Thing"},
    "profiler by a text": {"profiler": "bait.Thing"},
    "function that prunes": {"callbacks": [part(f"{CALLBACKS}.ModelPruning", pruning_fn="os.system", amount=0.1)]},
    "class that averages": {
        "callbacks": [part(f"{CALLBACKS}.StochasticWeightAveraging", swa_lrs=0.1, avg_fn="bait.Thing")]
    },
    "schedule of a profiler": {"profiler": part(f"{LIGHTNING}.profilers.PyTorchProfiler", schedule="os.system")},
    "run of W&B": {"logger": [part(f"{LIGHTNING}.loggers.WandbLogger", experiment=part("bait.Thing"))]},
}
SECTIONS: dict[str, dict[str, Any]] = {
    "default_config_files": {"default_config_files": ["/etc/passwd"]},
    "cfg": {"cfg": "/etc/passwd"},
    "__path__": {"__path__": "/etc/passwd"},
    "allow_import": {"allow_import": ["bait"]},
}
# What the config of a run may not say: addresses, and settings that no signature limits.
RUN_CONFIGS: dict[str, dict[str, Any]] = {
    "trainer.logger.0.init_args.artifact_location": {
        "trainer": {"logger": [part("MLFlowLogger", artifact_location="file:/tmp")]}
    },
    "trainer.logger.0.dict_kwargs.config": {"trainer": {"logger": [wandb(config="settings.yaml")]}},
    "wandb.entity": {"wandb": {"entity": "https://127.0.0.1:9"}},
    "data.init_args.noises.0": {"data": {"init_args": {"noises": ["s3://bucket/noises"]}}},
    "model.init_args.net.init_args.source": {
        "model": {"init_args": {"net": part("zoo.ci_llm.Backbone", source="http://127.0.0.1:9/model")}}
    },
}


def recipe(**changes: Any) -> str:
    content = yaml.safe_load(TOY_RECIPE.read_text())
    return yaml.safe_dump({**content, **changes, "trainer": {**content["trainer"], **changes.get("trainer", {})}})


@pytest.fixture(scope="module")
def bait(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bait")
    (folder / "bait.py").write_text("class Thing:\n    pass\n")
    return str(folder)


def assert_refused(texts: dict[str, str], build: bool, bait: str, expected: str) -> None:
    for name, (attempt, is_imported) in zip(
        texts, in_fork(parse_and_build, list(texts.values()), build, bait), strict=True
    ):
        assert attempt.code == 2 and not is_imported and len(attempt.errors) == 1, (name, attempt)
        assert "Traceback" not in attempt.output and expected in attempt.errors[0], (name, attempt)


def test_sharded_strategies_of_lightning_are_refused(bait: str) -> None:
    texts = {str(value): recipe(trainer={"strategy": value}) for value in SPELLINGS}
    assert_refused(texts, False, bait, "strategy")


def test_registry_has_no_class_that_reads_pickles() -> None:
    for name in SHARDED:
        with pytest.raises(ValueError):
            registry.get_class(f"{LIGHTNING}.strategies.{name}")
    listed = [name for names in registry.EXTERNAL_CLASSES.values() for name in names.split()]
    assert not [
        name for name in listed if name.startswith(("FSDP", "DeepSpeed", "ModelParallel")) or "CheckpointIO" in name
    ]


def test_texts_of_the_trainer_import_nothing(bait: str) -> None:
    assert_refused({name: recipe(trainer=values) for name, values in TRAINER.items()}, True, bait, "")


def test_keys_of_jsonargparse_are_refused(bait: str) -> None:
    assert_refused({name: recipe(**values) for name, values in SECTIONS.items()}, False, bait, "")


@pytest.mark.parametrize("key", RUN_CONFIGS)
def test_config_of_a_run_names_no_address(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=key):
        check_config_paths(RUN_CONFIGS[key], tmp_path)
    check_config_paths(RUN_CONFIGS[key], tmp_path, [f"--{key.replace('.init_args', '').replace('.0', '')}=x"])
    net = part("zoo.ci_llm.Backbone", source="someone/model")
    config = {"model": {"init_args": {"net": net}}, "data": {"init_args": {"root": "/data"}}}
    check_config_paths({**config, "init_from": "hf://someone/model"}, tmp_path)
