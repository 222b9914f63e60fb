"""DeepSpeed's ZeRO, stages 1 and 2, for tasks with one optimizer."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor
from torch.optim import Optimizer

ELEMENTWISE = (*"Adam AdamW NAdam RAdam Adamax Adadelta SGD RMSprop Rprop".split(), "Lion", "FusedAdam")
BUCKET = 50_000_000  # largest number of values that are reduced together: 200 MB in float32


class DeepSpeed(DeepSpeedStrategy):
    """Lightning's strategy that also runs on CPUs, and reads and writes ordinary checkpoint files.

    A run resumes under DDP and on another number of processes. A weight without a gradient takes a zero gradient.

    Args:
        stage: 1 shards optimizer states, 2 also gradients.
        autocast: dtype of DeepSpeed's autocast, for `trainer.precision: 32-true`; weights and inputs stay float32.
        process_group_backend: "nccl" or "gloo"; by default the device's own.
        timeout: after which a process that waits for another gives up.
    """

    hides_gradients = True
    # GPUs or CPUs, and ordinary checkpoint files
    setup_environment = DDPStrategy.setup_environment
    save_checkpoint = DDPStrategy.save_checkpoint
    load_checkpoint = DDPStrategy.load_checkpoint
    lightning_restore_optimizer = DDPStrategy.lightning_restore_optimizer

    def __init__(
        self,
        stage: Literal[1, 2] = 2,
        autocast: Literal["bfloat16", "float16"] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        if stage not in (1, 2):
            raise ValueError(f"stage is {stage!r}; expected 1 or 2 (to shard the weights, use trainer/fsdp)")
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # its throughput log is off; nothing else reads it
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET},
        }
        if autocast is not None:
            config["torch_autocast"] = {"enabled": True, "dtype": autocast}
        super().__init__(config=config, process_group_backend=process_group_backend, timeout=timeout)

    @property
    def root_device(self) -> torch.device:
        """Return this process's device with an index, which DeepSpeed reads on CPUs, too."""
        device = super().root_device
        return torch.device("cpu", 0) if device.type == "cpu" else device

    def setup_distributed(self) -> None:
        """Start the process group, then DeepSpeed on top of it."""
        DDPStrategy.setup_distributed(self)
        if self.root_device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        ranks = {"RANK": self.global_rank, "LOCAL_RANK": self.local_rank, "WORLD_SIZE": self.world_size}
        os.environ.update({key: str(value) for key, value in ranks.items()})  # read by DeepSpeed
        import deepspeed

        # an operation for inference on CPUs, which DeepSpeed would compile here for minutes
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend=self.process_group_backend, dist_init_required=False)

    def setup(self, trainer: L.Trainer) -> None:
        """Build the engine."""
        task: Any = self.lightning_module
        precision, accumulated = self.precision_plugin.precision, trainer.accumulate_grad_batches
        if not task.automatic_optimization:
            raise ValueError(f"DeepSpeed: {type(task).__name__} has several optimizers: use --config trainer/fsdp")
        if precision != "32-true":
            raise ValueError(f"trainer.precision is {precision}; DeepSpeed needs 32-true (and `autocast: bfloat16`)")
        if accumulated > 1:  # it counts batches across epochs
            raise ValueError(f"trainer.accumulate_grad_batches is {accumulated}; DeepSpeed needs 1: see trainer/fsdp")
        super().setup(trainer)
        name = type(self._zero.optimizer).__name__ if self.optimizers else ELEMENTWISE[0]
        if name not in ELEMENTWISE:
            raise ValueError(f"{name} does not work with DeepSpeed's shards: use one of {', '.join(ELEMENTWISE)}")

    @property
    def _zero(self) -> Any:
        """DeepSpeed's optimizer around the task's."""
        return self.optimizers[0]

    def gradient_norm(self, optimizer: Optimizer) -> Tensor:
        """Return the 2-norm over the gradients of all ranks, before clipping."""
        return torch.as_tensor(self._zero.scaled_global_norm())

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the weights, also into DeepSpeed's shards of them."""
        DDPStrategy.load_model_state_dict(self, checkpoint, strict)
        if self.optimizers:
            self._zero.refresh_fp32_params()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state as one process has it; all ranks gather, rank 0 uses the result."""
        from deepspeed.utils import safe_get_full_optimizer_state

        states: dict[int, dict[str, Any]] = {}
        groups = []
        for group, shard, weights in self._groups():
            state = self._zero.optimizer.state.get(shard, {})
            self._link(shard, [weight for _, weight in weights])
            settings = {key: value for key, value in group.items() if key != "params"}
            groups.append({**settings, "params": [index for index, _ in weights]})
            for index, weight in weights if state else ():
                states[index] = {
                    key: safe_get_full_optimizer_state(weight, key).cpu().clone()
                    if _is_elementwise(key, value, shard)
                    else copy.deepcopy(value)
                    for key, value in state.items()
                }
        return {"state": states, "param_groups": groups}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Put full optimizer states into the shards."""
        from deepspeed.utils import safe_set_full_optimizer_state

        (saved,) = checkpoint["optimizer_states"]
        for (group, shard, weights), saved_group in zip(self._groups(), saved["param_groups"], strict=True):
            group.update({key: value for key, value in saved_group.items() if key != "params"})
            states = [(saved["state"][index], weight) for index, weight in weights if index in saved["state"]]
            if not states:
                continue
            # a weight that never had a gradient may lack a state, and counts the others' steps here
            state, like = max(states, key=lambda each: float(each[0].get("step", 0)))
            self._zero.optimizer.state[shard] = {
                key: torch.zeros_like(shard) if _is_elementwise(key, value, like) else value
                for key, value in state.items()
            }
            self._link(shard, [weight for _, weight in weights])
            for state, weight in states:
                for key, value in state.items():
                    if _is_elementwise(key, value, weight):
                        safe_set_full_optimizer_state(weight, value.to(self.root_device), key)

    def _groups(self) -> Iterator[tuple[dict[str, Any], Tensor, list[tuple[int, Tensor]]]]:
        """Yield each parameter group's settings, this rank's shard of it, and its weights with their indices."""
        zero, index = self._zero, 0
        shards = zero.single_partition_of_fp32_groups
        for group, shard, weights in zip(zero.optimizer.param_groups, shards, zero.bit16_groups, strict=True):
            yield group, shard, list(enumerate(weights, index))
            index += len(weights)

    def _link(self, shard: Tensor, weights: list[Tensor]) -> None:
        """Let DeepSpeed find each weight's state in that of the shard, also of groups after the first."""
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        if shard in self._zero.optimizer.state:
            lazy_init_hp_params_optimizer_state(weights, shard, self._zero.optimizer.state)


def _is_elementwise(key: str, value: Any, weight: Tensor) -> bool:
    """Return whether a value of an optimizer's state has an entry for each of the weight's."""
    return key != "step" and isinstance(value, Tensor) and value.shape == weight.shape
