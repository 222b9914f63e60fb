"""Toy wing: learns the gain between two signals; shows what a system needs and that zoo/ needs no edit for it."""

from zoo.common.registry import register_components

__getattr__, __all__ = register_components(
    __name__,
    {
        "backbone": "FrozenTask Louder Scale Scaled",
        "data": "PairData",
        "faults": "Ballast BrokenLogger DyingAmplifier DyingTask FillDisk Hungry KillAt Misfortune",
        "inference": "Amplifier",
        "nets": "Gain",
        "task": "GainTask",
    },
)
