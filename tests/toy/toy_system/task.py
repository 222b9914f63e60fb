"""Training of the gain, by automatic optimization."""

from collections.abc import Mapping

from torch import Tensor, nn

from toy_system.nets import Gain
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask


class GainTask(SingleOptimizerTask):
    inference_class = "toy_system.Amplifier"
    inference_modules = ("net",)

    def __init__(self, net: Gain, optimizer: OptimizerCallable, scheduler: SchedulerCallable | None = None) -> None:
        super().__init__(optimizer, scheduler)
        self.net = net
        self.drop = nn.Dropout(0.5)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = (self.drop(self.net(batch["x"])) - batch["y"]).square().mean()
        self.log_terms("train", {"loss": loss})
        return loss

    def evaluate(self, batch: dict[str, Tensor], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor], int]:
        return {"error": (self.net(batch["x"]) - batch["y"]).square().mean()}, len(batch["x"])
