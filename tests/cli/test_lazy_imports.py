from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from zoo.cli.lazy_imports import put_off_torchmetrics
put_off_torchmetrics()
put_off_torchmetrics()
import lightning
import zoo.cli.trainer
loaded = {"transformers", "matplotlib", "scipy.signal", "wandb", "tensorboard"} & set(sys.modules)
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


def test_lightning_without_what_torchmetrics_imports():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
