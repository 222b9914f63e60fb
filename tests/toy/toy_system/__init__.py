"""Toy system: learns the gain between two signals; shows what a system needs and that zoo/ needs no edit for it."""

import zoo

__getattr__, __dir__, __all__ = zoo.register(
    __name__,
    {
        "backbone": "FrozenTask Louder Scale Scaled",
        "data": "PairData",
        "faults": "Ballast BrokenLogger DyingAmplifier DyingTask FillDisk Hungry KillAt Misfortune PlainData",
        "inference": "Amplifier",
        "nets": "Gain",
        "task": "GainTask",
    },
)
