"""What every system uses while it trains and none owns."""

from zoo.common.registry import register_components

__getattr__, __all__ = register_components(
    __name__,
    {
        "adversarial": "Discriminator",
        "callbacks.ema": "EMA",
        "callbacks.guard": "LossGuard Plateau",
        "callbacks.loss_scale": "LossScale",
        "data": "ZooDataModule",
        "gan": "GANTask",
        "schedules": "LrScaling RampedCosine StageCosine WarmupConstant WarmupCosine WarmupLinear",
        "strategies.fsdp": "FSDP",
        "strategies.deepspeed": "DeepSpeed",
        "task": "SingleOptimizerTask ZooTask",
    },
)
