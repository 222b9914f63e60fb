import os
import subprocess
import sys

import pytest
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from zoo.convert.old_calls import DDP, read_accelerate, translate


@pytest.fixture
def parser():
    parser = LightningArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_lightning_class_args(Trainer, "trainer")
    return parser


def test_flow_and_compressed_ad_configs():
    launch = translate(
        {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "MULTI_GPU",
            "downcast_bf16": "no",
            "gpu_ids": "all",
            "machine_rank": 0,
            "main_training_function": "main",
            "mixed_precision": "fp16",
            "num_machines": 1,
            "num_processes": 4,
            "rdzv_backend": "static",
            "same_network": True,
            "tpu_env": [],
            "tpu_use_cluster": False,
            "use_cpu": False,
        }
    )
    assert launch.trainer == {
        "accelerator": "auto",
        "devices": 4,
        "num_nodes": 1,
        "strategy": DDP,
        "precision": "16-mixed",
    }
    assert launch.unmapped == []
    assert launch.environment == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"distributed_type": "NO"}, {"devices": 1, "strategy": "auto", "precision": "32-true"}),
        ({"num_processes": 2, "gpu_ids": "1,3"}, {"devices": [1, 3]}),
        ({"num_processes": 1, "gpu_ids": 2}, {"devices": [2]}),
        ({"num_processes": "auto"}, {"devices": "auto", "strategy": DDP}),
        ({"num_processes": -1}, {"devices": "auto"}),
        ({"use_cpu": True, "mixed_precision": "fp16"}, {"accelerator": "cpu", "precision": "32-true"}),
        ({"use_cpu": True, "mixed_precision": "bf16"}, {"precision": "bf16-mixed"}),
        ({"distributed_type": "MULTI_CPU", "num_processes": 2}, {"accelerator": "cpu", "devices": 2}),
        ({"num_processes": 8, "num_machines": 2}, {"devices": 4, "num_nodes": 2}),
        ({"gradient_accumulation_steps": 4}, {"accumulate_grad_batches": 4}),
    ],
)
def test_keys(given, expected):
    trainer = translate(given).trainer
    assert {key: trainer[key] for key in expected} == expected


def test_nodes_find_one_another_by_environment():
    launch = translate(
        {
            "num_processes": 4,
            "num_machines": 2,
            "machine_rank": 1,
            "main_process_ip": "10.0.0.1",
            "main_process_port": 29501,
        }
    )
    assert launch.environment == {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}
    assert "# set in the environment: NODE_RANK=1" in launch.to_yaml()


def test_what_has_no_counterpart_is_listed():
    launch = translate(
        {
            "distributed_type": "FSDP",
            "num_processes": 2,
            "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
            "mixed_precision": "fp8",
            "colour": "green",
        }
    )
    assert "strategy" not in launch.trainer
    assert "precision" not in launch.trainer
    assert launch.unmapped == [
        "distributed_type FSDP: add --config configs/trainer/fsdp.yaml",
        "mixed_precision fp8: trainer.precision: transformer-engine",
        "fsdp_config (fsdp_sharding_strategy): set the same choices in configs/trainer/fsdp.yaml",
        "colour: unknown key",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_processes": "two"}, "num_processes: expected a number from 1, found 'two'"),
        ({"num_processes": 0}, "found 0"),
        ({"num_processes": 3, "num_machines": 2}, "cannot be divided"),
        ({"num_processes": 2, "gpu_ids": "a,b"}, "expected all, or numbers"),
        ({"num_processes": 2, "gpu_ids": "0,1,2"}, "names 3 devices for 2"),
    ],
)
def test_wrong_values_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        translate(given)


def test_files(tmp_path):
    path = tmp_path / "a.yaml"
    with pytest.raises(FileNotFoundError, match=r"a\.yaml"):
        read_accelerate(path)
    for content in ("- 1", "a: [", "num_processes: x"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"a\.yaml: ") as caught:
            read_accelerate(path)
        assert "\n" not in str(caught.value)


def test_reads_what_accelerate_writes(tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "a.yaml"
    config_args.ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="MULTI_GPU",
        mixed_precision="bf16",
        use_cpu=False,
        debug=False,
        num_processes=2,
    ).to_yaml_file(path)
    launch = read_accelerate(path)
    assert launch.trainer["devices"] == 2
    assert launch.trainer["precision"] == "bf16-mixed"
    assert launch.unmapped == []


def test_fragment_and_flags_mean_the_same(parser, tmp_path):
    launch = translate({"num_processes": 2, "use_cpu": True, "mixed_precision": "bf16"})
    fragment = tmp_path / "t.yaml"
    fragment.write_text(launch.to_yaml())
    from_file = parser.parse_args(["--config", str(fragment)])
    from_flags = parser.parse_args(launch.to_flags())
    # A flag is text at first, and the trainer takes "2" as well.
    from_flags.trainer.devices = int(from_flags.trainer.devices)
    assert from_file.trainer == from_flags.trainer
    strategy = parser.instantiate(from_flags).trainer.strategy
    assert not strategy._ddp_kwargs.get("find_unused_parameters")  # the task says whether it needs that
    assert strategy._ddp_kwargs["broadcast_buffers"] is False


def test_script(repository, tmp_path):
    source, target = tmp_path / "a.yaml", tmp_path / "t.yaml"
    source.write_text("num_processes: 2\nuse_cpu: true\ncolour: green\n")
    command = [sys.executable, str(repository / "scripts" / "accelerate_to_zoo.py"), str(source)]
    done = subprocess.run([*command, str(target)], capture_output=True, text=True, check=True)
    assert "not translated: colour" in done.stderr
    assert yaml.safe_load(target.read_text())["trainer"]["devices"] == 2


def test_fragments_are_trainer_sections(parser, repository):
    fragments = sorted((repository / "configs" / "trainer").glob("*.yaml"))
    names = {path.stem for path in fragments}
    assert {"cpu", "gpu", "ddp", "ddp_2", "ddp_4", "ddp_8", "fsdp", "deepspeed", "debug"} <= names
    for path in fragments:
        assert path.read_text().startswith("# "), path
        assert list(yaml.safe_load(path.read_text())) == ["trainer"], path
        parser.parse_args(["--config", str(path)])


def test_ddp_fragments(parser, repository):
    folder = repository / "configs" / "trainer"
    for name, devices in (("ddp", "auto"), ("ddp_2", 2), ("ddp_4", 4), ("ddp_8", 8)):
        trainer = yaml.safe_load((folder / f"{name}.yaml").read_text())["trainer"]
        assert trainer == {"accelerator": "auto", "devices": devices, "strategy": DDP}


@pytest.mark.parametrize("name", ["cpu", "ddp", "debug"])
def test_fragments_build_a_trainer(parser, repository, name):
    path = repository / "configs" / "trainer" / f"{name}.yaml"
    config = parser.parse_args(["--config", str(path), "--trainer.accelerator=cpu", "--trainer.logger=false"])
    trainer = Trainer(**parser.instantiate(config).trainer.as_dict())
    assert trainer.world_size == 1


def test_launch_script_parses(repository):
    path = repository / "scripts" / "launch.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.stat().st_mode & 0o111


def stand_in(folder, name, body):
    """Put an executable of that name at the front of the path."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def run_script(repository, tmp_path, script, *args, **environment):
    variables = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        **environment,
    }
    command = ["bash", str(repository / "scripts" / script), *args]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_launch_script(repository, tmp_path):
    stand_in(tmp_path, "python", 'echo python "$@"')
    done = run_script(repository, tmp_path, "launch.sh", "r.yaml", "2", "--seed_everything=1")
    assert "--nproc-per-node=2" in done.stdout and "--max-restarts=3" in done.stdout
    flags = "--trainer.devices=2 --ckpt_path auto --seed_everything=1\n"
    assert done.stdout.endswith(f"-m zoo fit --config r.yaml --config trainer/ddp {flags}")
