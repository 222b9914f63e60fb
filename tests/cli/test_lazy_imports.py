from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from zoo.cli.lazy_imports import collector_off

TORCHMETRICS = """
import sys
from zoo.cli.lazy_imports import put_off_imports
put_off_imports()
put_off_imports()
import lightning
import zoo.cli.trainer
loaded = {"transformers", "matplotlib", "scipy.signal", "wandb", "tensorboard", "sympy"} & set(sys.modules)
assert not loaded, loaded
import torchmetrics
assert torchmetrics.Metric is torchmetrics.metric.Metric
assert "torchmetrics.functional" not in sys.modules
from torchmetrics import MeanMetric
assert MeanMetric()(3.0) == 3 and issubclass(MeanMetric, torchmetrics.Metric)
assert torchmetrics.functional.text.bert_score and torchmetrics.__version__
try:
    torchmetrics.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
import matplotlib.figure
"""
UNCOMPILED = """
import sys
from zoo.cli.lazy_imports import put_off_imports
put_off_imports()
import lightning as L, torch
from lightning.fabric.wrappers import _unwrap_compiled
from lightning.pytorch.demos.boring_classes import BoringModel

seen = []

class Net(torch.nn.Module):
    @torch.compiler.disable
    def eager(self, x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    @torch.compiler.disable(recursive=False)
    def itself_eager(self, x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    def forward(self, x):
        return self.itself_eager(self.eager(x * 2)) * 3

@torch.compiler.allow_in_graph
def doubled(x):
    return 2 * x

class Task(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("loss", loss)
        return loss

def fit(task):
    off = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    L.Trainer(max_steps=2, limit_val_batches=0, accelerator="cpu", **off).fit(task)

net, x = Net(), torch.ones(3)
fit(Task())
assert (net(x) == 12).all() and seen == [False, False]
assert _unwrap_compiled(net) == (net, None)
assert not isinstance(net, torch._dynamo.eval_frame.OptimizedModule)
assert "sympy" not in sys.modules
"""
COMPILED = """
compiled = torch.compile(net, backend="eager")
assert (compiled(x) == 12).all() and seen == [False] * 4
from torch._dynamo import OptimizedModule
assert type(compiled) is OptimizedModule is sys.modules["torch._dynamo.eval_frame"].OptimizedModule
assert _unwrap_compiled(compiled)[0] is net
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
assert (torch.compile(lambda x: doubled(x) + 1, backend=backend, fullgraph=True)(x) == 3).all()
assert doubled in [node.target for node in graphs[0].graph.nodes]
task = Task()
task.compile(backend="eager")
fit(task)
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_lightning_without_what_torchmetrics_imports():
    run(TORCHMETRICS)


@pytest.mark.parametrize("first_use", ["", "import torch._dynamo.decorators", "from torch._dynamo import config"])
def test_the_compiler_comes_when_it_is_used(first_use):
    run(f"{UNCOMPILED}\n{first_use}\n{COMPILED}")


def test_the_collector_is_as_it_was():
    with pytest.raises(KeyError), collector_off():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with collector_off():
        pass
    assert not gc.isenabled()
    gc.enable()
