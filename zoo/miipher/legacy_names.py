"""The keys of the Accelerate version's configurations: the original's left, what they are here right."""

from __future__ import annotations

from typing import Literal

Stage = Literal["adapter", "pretrain", "finetune"]

RECIPES: dict[Stage, str] = {
    "adapter": "adapter_layer_6",
    "pretrain": "hifigan_pretrain_layer_6",
    "finetune": "hifigan_finetune_layer_6",
}
# names of the original's configurations that are called otherwise here
RENAMED_RECIPES = {
    "adapter_layer_6_mhubert_147": "adapter_layer_6",
    "adapter_layer_6_mhubert_147_ddp": "adapter_layer_6",
    "adapter_l2": "adapter_l2_hubert_large",
    "wav2vec2_base_l2": "adapter_l2_wav2vec2_base",
    "wav2vec2_large_l2": "adapter_l2_wav2vec2_large",
    "wavlm_base_l2": "adapter_l2_wavlm_base",
    "hifigan_pretrain_layer_6_mhubert_147": "hifigan_pretrain_layer_6",
    "hifigan_finetune_layer_6_mhubert_147": "hifigan_finetune_layer_6",
}
# what the original counts in batches, and the section and option here
COUNTED = {
    "steps": ("trainer", "max_steps"),
    "validation_interval": ("trainer", "val_check_interval"),
    "checkpoint.save_interval": ("checkpoints", "every_n_batches"),
}
OPTIMIZERS: dict[Stage, tuple[str, ...]] = {
    "adapter": ("optimizer",),
    "pretrain": ("optimizer_g", "optimizer_d"),
    "finetune": ("optimizer_g", "optimizer_d"),
}
_CLEANER = "model.init_args.encoder.init_args"
BACKBONES: dict[Stage, str] = {
    "adapter": f"{_CLEANER}.backbone.init_args",
    "pretrain": _CLEANER,
    "finetune": f"{_CLEANER}.backbone.init_args",
}
_GENERATOR = "model.init_args.generator.init_args"
WEIGHTS = "model.init_args.loss_weights"

# {optimizer}: every optimizer of the stage; {backbone}: the arguments of its backbone
RENAMED: dict[str, tuple[str, ...]] = {
    "validation_batches": ("trainer.limit_val_batches",),
    "log_interval": ("trainer.log_every_n_steps",),
    "save_dir": ("trainer.default_root_dir",),
    "seed": ("seed_everything", "data.init_args.seed"),
    "loader.num_workers": ("data.init_args.num_workers",),
    "checkpoint.keep_last_n": ("checkpoints.keep_last",),
    "wandb.project": ("wandb.project",),
    "wandb.entity": ("wandb.entity",),
    "wandb.name": ("wandb.name",),
    "wandb.tags": ("wandb.tags",),
    "model.hubert_model_name": ("{backbone}.source",),
    "model.hubert_layer": ("{backbone}.layer",),
    "model.model_type": ("{backbone}.family",),
    "optim.lr": ("model.init_args.{optimizer}.init_args.lr",),
    "optim.betas": ("model.init_args.{optimizer}.init_args.betas",),
    "optim.weight_decay": ("model.init_args.{optimizer}.init_args.weight_decay",),
    "lr": ("model.init_args.{optimizer}.init_args.lr",),
    "betas": ("model.init_args.{optimizer}.init_args.betas",),
}
RENAMED_IN: dict[Stage, dict[str, tuple[str, ...]]] = {
    "adapter": {
        "model.adapter_hidden_dim": (f"{_CLEANER}.adapters.init_args.hidden_dim",),
        "optim.max_grad_norm": ("trainer.gradient_clip_val",),
    },
    "pretrain": {
        "optim.max_grad_norm": ("model.init_args.clip_g", "model.init_args.clip_d"),
        "lambda_mel": (f"{WEIGHTS}.g/mel",),
        "lambda_adv": (f"{WEIGHTS}.g/adv_mpd", f"{WEIGHTS}.g/adv_msd"),
        "upsample_rates": (f"{_GENERATOR}.upsample_rates",),
        "upsample_kernel_sizes": (f"{_GENERATOR}.upsample_kernel_sizes",),
        "resblock_kernel_sizes": (f"{_GENERATOR}.resblock_kernel_sizes",),
        "resblock_dilations": (f"{_GENERATOR}.resblock_dilation_sizes",),
    },
    "finetune": {},
}
RENAMED_IN["finetune"] = {
    **RENAMED_IN["pretrain"],
    "model.adapter_hidden_dim": RENAMED_IN["adapter"]["model.adapter_hidden_dim"],
}
# a key, or the beginning of keys that ends in a dot
WITHOUT_COUNTERPART = {
    "dataset.val_path_pattern": "validation is taken out of the corpus: data.init_args.val_speakers, val_items",
    "dataset.shuffle": "every epoch has a new order of all clips",
    "training.dataloader_drop_last": "training always drops the last, incomplete batch",
    "loader.pin_memory": "memory is pinned where there is a GPU",
    "model.adapter_hidden_dim": "this stage has no adapters",
    "checkpoint.save_wandb_metadata": "the W&B run id always lies in the run folder",
    "wandb.id": "the id lies in the run folder and is taken up by a resume",
    "wandb.notes": "edit them on the run's page",
    "wandb.log_model": "checkpoints stay in the run folder",
    "wandb.log_audio": "audio is logged with every validation: model.init_args.media_items",
    "audio_log_interval": "audio is logged with every validation: trainer.val_check_interval",
    "accelerate.": "set it in configs/trainer/fsdp.yaml, deepspeed.yaml or ddp.yaml",
    "distributed.": "set it in configs/trainer/ddp.yaml",
    "lambda_stft": "the original read it nowhere",
    "lambda_mpd": "the original read it nowhere; here model.init_args.loss_weights has g/adv_mpd",
    "lambda_msd": "the original read it nowhere; here model.init_args.loss_weights has g/adv_msd",
    "r1_lambda": "no R1 penalty here",
    "optim.r1_lambda": "no R1 penalty here",
}
SCHEDULES = {
    "constant": None,
    "constant_with_warmup": "zoo.training.WarmupConstant",
    "linear": "zoo.training.WarmupLinear",
    "cosine": "zoo.training.WarmupCosine",
    "cosine_with_restarts": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
}
