"""Accelerate's configuration files as settings of the trainer."""

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from scripts.accelerate_to_zoo import DDP, main, translate

# As `accelerate config` writes it for one machine with four GPUs.
MULTI_GPU = {
    **{"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "downcast_bf16": "no"},
    **{"gpu_ids": "all", "machine_rank": 0, "main_training_function": "main", "mixed_precision": "fp16"},
    **{"num_machines": 1, "num_processes": 4, "rdzv_backend": "static", "same_network": True, "tpu_env": []},
    **{"tpu_use_cluster": False, "use_cpu": False},
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MULTI_GPU, {"accelerator": "auto", "devices": 4, "num_nodes": 1, "strategy": DDP, "precision": "16-mixed"}),
        ({"distributed_type": "NO"}, {"devices": 1, "strategy": "auto", "precision": "32-true"}),
        ({"num_processes": 2, "gpu_ids": "1,3"}, {"devices": [1, 3]}),
        ({"num_processes": "auto"}, {"devices": "auto", "strategy": DDP}),
        ({"use_cpu": True, "mixed_precision": "fp16"}, {"accelerator": "cpu", "precision": "32-true"}),
        ({"fp16": True, "mixed_precision": "bf16"}, {"precision": "bf16-mixed"}),
        ({"distributed_type": "MULTI_CPU", "num_processes": 2}, {"accelerator": "cpu", "devices": 2}),
        ({"num_processes": 8, "num_machines": 2}, {"devices": 4, "num_nodes": 2}),
        ({"gradient_accumulation_steps": 4}, {"accumulate_grad_batches": 4}),
    ],
)
def test_keys(config, expected):
    launch = translate(config)
    assert {key: launch.trainer[key] for key in expected} == expected
    assert launch.untranslated == [] and launch.environment == {}


def test_nodes_find_one_another_by_environment():
    config = {"num_processes": 4, "num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1"}
    launch = translate({**config, "main_process_port": 29501})
    assert launch.environment == {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}


def test_untranslated_keys_are_named():
    config = {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}}
    launch = translate({**config, "mixed_precision": "fp8", "colour": "green"})
    assert not {"strategy", "precision"} & set(launch.trainer)
    names = [line.split(":")[0] for line in launch.untranslated]
    assert names == ["distributed_type FSDP", "mixed_precision fp8", "fsdp_config", "colour"]
    assert launch.untranslated[0].endswith("add --config configs/trainer/fsdp.yaml before these settings")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{num_processes: 3, num_machines: 2}", "num_machines"),
        ("{num_processes: 2, gpu_ids: '0,1,2'}", "gpu_ids"),
        ("a: [", "a.yaml"),
    ],
)
def test_wrong_file_is_refused_in_one_line(tmp_path, capsys, text, key):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert main([str(path)]) == 1
    message = capsys.readouterr().err
    assert key in message and "a.yaml" in message and message.count("\n") == 1


def test_fragment_and_flags_mean_the_same(tmp_path, capsys):
    parser = LightningArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_lightning_class_args(Trainer, "trainer")
    source, target = tmp_path / "a.yaml", tmp_path / "t.yaml"
    source.write_text("{num_processes: 2, use_cpu: true, mixed_precision: bf16}")
    assert main([str(source)]) == main([str(source), str(target)]) == 0
    from_flags = parser.parse_args(capsys.readouterr().out.split())
    from_file = parser.parse_args(["--config", str(target)])
    from_flags.trainer.devices = int(from_flags.trainer.devices)  # a flag is text, which the trainer takes as well
    assert from_file.trainer == from_flags.trainer
    assert type(parser.instantiate(from_flags).trainer.strategy).__name__ == "DDPStrategy"
