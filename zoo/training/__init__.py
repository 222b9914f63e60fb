"""What every system uses while it trains and none owns."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "adversarial": "Discriminator",
        "callbacks.ema": "EMA",
        "callbacks.guard": "LossGuard Plateau",
        "datamodule": "ZooDataModule",
        "gan": "GANStep GANTask",
        "optimizers": "LrScaling",
        "schedules": "StageCosine WarmupConstant WarmupCosine WarmupLinear",
        "strategies.fsdp": "FSDP",
        "strategies.deepspeed": "DeepSpeed",
        "task": "SingleOptimizerTask ZooTask",
    },
)
