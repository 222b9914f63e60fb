"""What every system uses while it trains and none owns."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "adversarial": "Discriminator",
        "amp": "LossScale",
        "ema": "EMA",
        "gan": "GANTask",
        "guard": "LossGuard",
        "guard_robust": "RobustGuard",
        "loss_monitor": "LossMonitor",
        "lr_scaling": "LrScaling",
        "plateau": "Plateau",
        "resume": "ZooDataModule",
        "schedules": "RampedCosine StageCosine WarmupConstant WarmupCosine WarmupExponential WarmupLinear",
        "task": "SingleOptimizerTask ZooTask",
    },
)
