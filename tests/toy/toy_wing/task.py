"""Training of the gain, by automatic optimization."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from toy_wing.nets import Gain
from zoo.training.task import ZooTask
from zoo.training.types import OptimizerCallable


class GainTask(ZooTask):
    inference_class = "toy_wing.restore.Amplifier"
    inference_parts = ("net",)

    def __init__(self, net: Gain, optimizer: OptimizerCallable, compile: bool = False) -> None:
        super().__init__(compile=compile)
        self.net = net
        self.optimizer = optimizer
        self.drop = nn.Dropout(0.5)

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer(self.net.parameters())

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = (self.drop(self.net(batch["x"])) - batch["y"]).square().mean()
        self.log_terms("train", {"loss": loss})
        return loss

    def evaluate(self, batch: dict[str, Tensor], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor], int]:
        return {"error": (self.net(batch["x"]) - batch["y"]).square().mean()}, len(batch["x"])
