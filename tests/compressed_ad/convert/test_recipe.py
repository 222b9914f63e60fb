from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.compressed_ad.convert import convert_config, describe, to_original


def recipe_of(tmp_path: Path, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    recipe, unmapped = convert_config(tmp_path / "config.yaml")
    return OmegaConf.to_container(OmegaConf.create(recipe), resolve=True), unmapped


def test_an_empty_configuration_is_the_originals_recipe(tmp_path):
    for model, name in (("AD", "darkroom_ad"), ("CompressedAD", "darkroom_cad")):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": model}))
        expected = load_recipe(recipe_root() / "compressed_ad" / f"{name}.yaml")
        if model == "CompressedAD":  # the original's code has other stages than its configurations
            stages = {"starts": [0, 10_000, 25_000, 40_000], "max_compressions": [1, 2, 3, None]}
            shares = [[0.5, 0.45, 0.05], [0.35, 0.4, 0.2, 0.05], [0.25, 0.3, 0.3, 0.15], [0.2, 0.25, 0.3, 0.25]]
            expected["data"]["init_args"]["curriculum"]["init_args"] |= stages | {"shares": shares}
        assert convert_config(tmp_path / "config.yaml") == (expected, [])
    halved = recipe_of(tmp_path, {"model": "CompressedAD", "gradient_accumulation_steps": 2})[0]
    assert halved["trainer"]["max_steps"] == 50_000  # the recipe's own steps are the original's batches
    assert halved["data"]["init_args"]["curriculum"]["init_args"]["starts"] == [0, 5_000, 12_500, 20_000]


def test_a_configuration_becomes_a_recipe(tmp_path):
    schedule = [
        {"step": 0, "max_compressions": 2, "length_distribution": {"short": 0.5, "medium": 0.5}},
        {"step": 600, "max_compressions": None},
    ]
    recipe, unmapped = recipe_of(
        tmp_path,
        {
            **{"model": "CompressedAD", "env": "dark_key_to_door", "grid_size": 7, "horizon": 30, "seed": 3},
            **{"n_transit": 90, "tf_n_embd": 32, "n_compress_tokens": 12, "compress_n_layers": 2, "lr": "1e-3"},
            **{"tf_dim_feedforward": 48, "beta2": 0.95, "curriculum_schedule": schedule, "train_batch_size": 64},
            **{"gradient_accumulation_steps": 4, "train_timesteps": 1000, "num_warmup_steps": 40, "ckpt_interval": 100},
            **{"mixed_precision": False, "use_reward_weighted_recon": False, "recon_reg_weight": 0.2},
            **{"tf_n_inner": 99, "env_split_seed": 4, "something": 1},
        },
    )
    assert sorted(key.partition(":")[0] for key in unmapped) == ["env_split_seed", "something", "tf_n_inner"]
    trainer, arguments, data = recipe["trainer"], recipe["model"]["init_args"], recipe["data"]["init_args"]
    assert recipe["seed_everything"] == data["seed"] == 3
    assert (trainer["max_steps"], trainer["accumulate_grad_batches"], trainer["precision"]) == (250, 4, "32-true")
    assert recipe["checkpoints"]["every_n_steps"] == 25
    env = {"class_path": "zoo.compressed_ad.DarkKeyToDoor", "init_args": {"grid_size": 7, "horizon": 30}}
    assert data["env"] == env
    assert (arguments["recon_weight"], arguments["reward_weight"], arguments["dense"]) == (0.2, 1.0, False)
    assert arguments["optimizer"]["init_args"] == {"lr": 0.001, "betas": [0.9, 0.95], "weight_decay": 0.01}
    stages = build(arguments["scheduler"]["init_args"])
    assert (stages["starts"], stages["warmup_steps"]) == ([0, 150], 10)
    curriculum = build(data["curriculum"])
    assert curriculum.window == 90 and curriculum.num_latents == 12 and curriculum.max_compressions == [2, None]
    assert curriculum.shares == [[0.5, 0.5, 0.0, 0.0, 0.0], [0.2, 0.25, 0.3, 0.25]]
    policy = build(arguments["policy"])
    assert policy.window == 90 and policy.num_latents == 12 and policy.embedding.grid_size == 7
    assert len(policy.compressor.layers) == len(policy.decoder.layers) == 2
    assert policy.transformer.blocks[0].mlp.fc1.out_features == 48
    assert data["batch_size"] == arguments["lr_scaling"]["init_args"]["batch_size"] == 64


def test_the_earlier_model(tmp_path):
    recipe, unmapped = recipe_of(
        tmp_path, {"model": "CompressedAD", "n_latent": 35, "n_transit": 200, "max_compression_depth": 2}
    )
    policy = build(recipe["model"]["init_args"]["policy"])
    to_original(policy, tmp_path / "a.pt")
    assert describe(tmp_path / "a.pt")["format"] == "v1" and unmapped == []
    assert policy.num_latents == 35 and policy.window == 200 and policy.embedding.dim == 128
    assert build(recipe["data"]["init_args"]["curriculum"]).max_compressions == [2]
    schedule = {"start_at_zero": True, "warmup_steps": 5000}
    assert recipe["model"]["init_args"]["scheduler"]["init_args"] == schedule
