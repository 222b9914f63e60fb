"""Makes the fixtures beside it from a checkout of 8e52760, and the digests that tests compare with.

    PYTHONPATH=CHECKOUT OMP_NUM_THREADS=1 python make.py CHECKOUT .

For every stage: `run/` after three batches, `expected.json` with what two further batches of that commit made of it,
`export/` for one stage of a wing, `converted/` what its converter made of the run's file in the original's format.
They are never made anew: a later commit has to read what this one wrote.
"""

import csv
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

DONE, MORE = 3, 2
MEASURED = ("train/samples_per_sec", "train/data_wait", "train/memory_gib")
SHORT = [
    f"--trainer.max_steps={DONE}",
    f"--trainer.val_check_interval={DONE}",
    "--trainer.num_sanity_val_steps=0",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.precision=32-true",
    f"--checkpoints.every_n_batches={DONE}",
    "--checkpoints.every_minutes=null",
]
MODEL, DATA = "--model.init_args", "--data.init_args"
SMALL_BACKBONE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
GAN = [
    f"{MODEL}.generator.init_args.initial_channels=16",
    f"{MODEL}.discriminators.mpd.init_args.periods=[2]",
    f"{MODEL}.discriminators.mpd.init_args.channel_mult=0.015625",
]
POLICY = f"{MODEL}.policy.init_args"
# stage -> (recipe, what makes its nets small)
STAGES = {
    "audiosr/smoke": (
        "audiosr/smoke",
        [
            f"{MODEL}.net.init_args.unet.init_args.channels=4",
            f"{MODEL}.net.init_args.unet.init_args.norm_groups=2",
            f"{MODEL}.net.init_args.unet.init_args.head_channels=4",
            f"{MODEL}.net.init_args.unet.init_args.multipliers=[1]",
            f"{MODEL}.net.init_args.unet.init_args.attention_factors=[1]",
            "--trainer.callbacks.init_args.modules=[net.unet]",
            f"{MODEL}.net.init_args.unet.init_args.context_channels=4",
            f"{MODEL}.net.init_args.global_encoder.init_args.channels=4",
            f"{MODEL}.net.init_args.global_encoder.init_args.positions=16",
            f"{MODEL}.net.init_args.global_encoder.init_args.context_channels=4",
            f"{MODEL}.autoencoder.init_args.config.channels=4",
            f"{MODEL}.vocoder.init_args.config.initial_channels=8",
        ],
    ),
    "audiosr/smoke_vae": (
        "audiosr/smoke_vae",
        [f"{MODEL}.autoencoder.init_args.channels=4", f"{MODEL}.discriminators.patch.init_args.layers=1"],
    ),
    "audiosr/vae": (
        "audiosr/demo_vae",
        [
            f"{MODEL}.autoencoder.init_args.channels=4",
            f"{MODEL}.autoencoder.init_args.norm_groups=4",
            f"{MODEL}.autoencoder.init_args.multipliers=[1,2]",
            f"{MODEL}.media_items=0",
            f"{MODEL}.scheduler.init_args.warmup_steps=1",
            f"{MODEL}.scheduler.init_args.total_steps=20",
            f"{DATA}.root=null",
            f"{DATA}.segment_samples=10240",
            f"{DATA}.batch_size=2",
            f"{DATA}.embedded_utterances=6",
            f"{DATA}.num_workers=0",
        ],
    ),
    "audiosr/smoke_vocoder": ("audiosr/smoke_vocoder", GAN),
    "ci_llm/smoke": (
        "ci_llm/smoke",
        [f"{MODEL}.crowd.init_args.backbone.init_args.config.{key}={value}" for key, value in SMALL_BACKBONE.items()]
        + [f"{MODEL}.crowd.init_args.backbone.init_args.config.num_key_value_heads=1"],
    ),
    "ci_llm/smoke_backbone": (
        "ci_llm/smoke_backbone",
        [f"{MODEL}.backbone.init_args.config.{key}={value}" for key, value in SMALL_BACKBONE.items()],
    ),
    "compressed_ad/smoke": ("compressed_ad/smoke", [f"{POLICY}.embedding.init_args.dim=8"]),
    "compressed_ad/pretrain": (
        "compressed_ad/pretrain_darkroom",
        [
            f"{POLICY}.embedding.init_args.dim=8",
            f"{POLICY}.latent_mask=full",
            f"{POLICY}.transformer.init_args.depth=1",
            f"{POLICY}.transformer.init_args.heads=2",
            f"{POLICY}.transformer.init_args.context=12",
            f"{POLICY}.compressor.init_args.num_latents=3",
            f"{POLICY}.compressor.init_args.depth=1",
            f"{POLICY}.compressor.init_args.heads=2",
            f"{POLICY}.decoder.init_args.depth=1",
            f"{POLICY}.decoder.init_args.heads=2",
            f"{MODEL}.scheduler.init_args.warmup_steps=1",
            f"{MODEL}.scheduler.init_args.total_steps=20",
            f"{DATA}.env.init_args.grid_size=5",
            f"{DATA}.env.init_args.horizon=6",
            f"{DATA}.root=null",
            f"{DATA}.demonstrator.class_path=zoo.compressed_ad.demonstrator.EpsilonCurriculum",
            f"{DATA}.demonstrator.init_args.env=${{data.init_args.env}}",
            f"{DATA}.demonstrator.init_args.episodes=5",
            f"{DATA}.length=11",
            f"{DATA}.batch_size=8",
            f"{DATA}.epoch_items=64",
            f"{DATA}.val_items=8",
            f"{DATA}.num_workers=0",
        ],
    ),
    "flow/smoke": ("flow/smoke", [f"{MODEL}.net.init_args.channels=4"]),
    "flow/points": ("flow/demo_swissroll", [f"{MODEL}.net.init_args.widths=[16,16]", f"{DATA}.batch_size=64"]),
    "hifigan/smoke": ("hifigan/smoke", [*GAN, f"{MODEL}.discriminators.msd.init_args.scales=1"]),
    "miipher/smoke_adapter": ("miipher/smoke_adapter", []),
    "miipher/smoke_backbone": (
        "miipher/smoke_backbone",
        [
            f"{MODEL}.encoder.init_args.config.intermediate_size=16",
            f"{MODEL}.encoder.init_args.config.num_hidden_layers=2",
        ],
    ),
    "miipher/smoke_finetune": ("miipher/smoke_finetune", GAN),
    "miipher/smoke_pretrain": ("miipher/smoke_pretrain", GAN),
}
EXPORTED = (
    "audiosr/smoke",
    "ci_llm/smoke",
    "compressed_ad/smoke",
    "flow/smoke",
    "hifigan/smoke",
    "miipher/smoke_finetune",
)
# stage -> (the original's file that its run becomes, what that becomes again)
CONVERTED = {
    "ci_llm/smoke": ("final_checkpoint", "ours.ckpt"),
    "compressed_ad/pretrain": ("pretrain.pt", "ours.ckpt"),
    "flow/points": ("original.ckpt", "ours.ckpt"),
    "hifigan/smoke": ("original", "ours"),
    "miipher/smoke_adapter": ("adapter.pt", "ours.ckpt"),
    "miipher/smoke_finetune": ("unified", "ours"),
}


def digests(checkpoint):
    """What a checkpoint holds, in few numbers.

    Returns:
        `sums`: for weights, averages and each kind of optimizer state the sums of the magnitudes of every tensor of
        real numbers, in order; `exact`: one hash for all other values (steps, generators, schedules), with every path.
    """
    import torch

    sums, exact = {}, hashlib.sha256()

    def visit(value, path):
        if isinstance(value, dict):
            for key, item in value.items():
                visit(item, (*path, str(key)))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(item, (*path, str(index)))
        else:
            exact.update("/".join(path).encode())
            real = isinstance(value, torch.Tensor) and value.is_floating_point() and path[-1] != "step"
            if real and path[0] != "rng":
                kind = path[0] if path[0] != "optimizer_states" else f"optimizer {path[1]} {path[-1]}"
                sums.setdefault(kind, []).append(float(f"{value.double().abs().sum().item():.7g}"))
            else:
                exact.update(value.cpu().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())

    for key in ("state_dict", "optimizer_states", "lr_schedulers", "ema", "rng", "global_step", "epoch"):
        visit(checkpoint.get(key), (key,))
    return {"sums": sums, "exact": exact.hexdigest()}


def continued(run):
    """What a run logged and saved last: the losses of the batches after `DONE`, and digests of the checkpoint."""
    import torch

    losses = {}
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for key, text in row.items():
                if text and int(row["step"]) >= DONE and key.startswith("train/") and key not in MEASURED:
                    losses.setdefault(key, {})[row["step"]] = float(text)
    return {"losses": losses, **digests(torch.load(run / f"step_{DONE + MORE:08d}.ckpt", weights_only=True))}


def main(checkout, target):
    for stage in STAGES:
        for step in (_train, _convert, _continue):
            process = multiprocessing.get_context("fork").Process(target=step, args=(checkout, target / stage, stage))
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(f"{stage}: {step.__name__} failed")


def _zoo(*args):
    from zoo.cli import main

    if main([str(arg) for arg in args]):
        sys.exit(1)


def _train(checkout, folder, stage):
    recipe, small = STAGES[stage]
    shutil.rmtree(folder, ignore_errors=True)
    work = _work()
    _zoo(
        "fit",
        "--config",
        checkout / "configs" / f"{recipe}.yaml",
        f"--trainer.default_root_dir={work / 'run'}",
        *SHORT,
        *small,
    )
    (folder / "run").mkdir(parents=True)
    for name in ("config.yaml", f"step_{DONE:08d}.ckpt", f"step_{DONE:08d}.ckpt.sha256"):
        shutil.copy(work / "run" / name, folder / "run")
    if (work / "run" / "frozen").is_dir():
        shutil.copytree(work / "run" / "frozen", folder / "run" / "frozen")
    if stage in EXPORTED:
        _zoo("export", folder / "run", folder / "export")


def _convert(checkout, folder, stage):
    if stage not in CONVERTED:
        return
    (original, ours), system, work = CONVERTED[stage], stage.split("/")[0], _work()
    shutil.copytree(folder / "run", "run")
    named = []
    if system in ("ci_llm", "miipher"):
        shutil.copytree(next((folder / "run" / "frozen").iterdir()), "backbone")
        named = ["--backbone", "backbone"]
    _zoo("convert", system, "run", original, *named)
    shutil.rmtree(folder / "converted", ignore_errors=True)
    (work / "converted").mkdir()
    _zoo("convert", system, original, f"converted/{ours}", *named)
    shutil.copytree("converted", folder / "converted")


def _continue(checkout, folder, stage):
    run = _work() / "run"
    shutil.copytree(folder / "run", run)
    _zoo("fit", "--ckpt_path", run, f"--trainer.max_steps={DONE + MORE}")
    (folder / "expected.json").write_text(json.dumps(continued(run)) + "\n")


def _work():
    work = Path(tempfile.mkdtemp())
    os.chdir(work)
    return work


if __name__ == "__main__":
    import torch
    import zoo.lightning_cli  # noqa: F401  imported before the forks

    torch.set_num_threads(1)
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
