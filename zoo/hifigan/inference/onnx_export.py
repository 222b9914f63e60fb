"""Export of a generator to ONNX, checked against onnxruntime."""

from __future__ import annotations

import copy
import importlib.util
import logging
from pathlib import Path

import torch

from zoo.common.atomic import replacing
from zoo.hifigan.nets.generator import Generator

log = logging.getLogger(__name__)

NEEDED = ("onnx", "onnxscript", "onnxruntime")
CHECKED_SHAPES = ((1, 37), (3, 20))  # (batch, frames) that the exporter has not seen


def export_onnx(generator: Generator, path: Path | str) -> float:
    """Write a generator with folded weight norm as an ONNX model with free batch size and length.

    Args:
        generator: left as it is; a fused copy is exported.
        path: the `.onnx` file, replaced only by a checked model. Input `frames` (B, in_channels, F), output `audio`
            (B, 1, T), float32.

    Returns:
        Largest absolute difference between torch and onnxruntime on random input of several shapes.

    Raises:
        ImportError: when the extra `export` is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX export needs {', '.join(missing)}: pip install zoo[export]")
    path = Path(path)
    fused = copy.deepcopy(generator).cpu().float().eval().fuse_()
    example = torch.zeros(2, fused.in_channels, 16)
    with replacing(path) as temporary:
        torch.onnx.export(
            fused,
            (example,),
            temporary,
            dynamo=True,
            input_names=["frames"],
            output_names=["audio"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("time")}},
            external_data=False,
            verbose=False,
        )
        difference = _difference(fused, temporary)
    log.info("%s: largest difference to torch %.1e", path, difference)
    return difference


def _difference(generator: Generator, path: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    random = torch.Generator().manual_seed(0)
    largest = 0.0
    for batch, frames in CHECKED_SHAPES:
        x = torch.randn(batch, generator.in_channels, frames, generator=random)
        with torch.inference_mode():
            expected = generator(x)
        found = torch.from_numpy(session.run(["audio"], {"frames": x.numpy()})[0])
        largest = max(largest, float((found - expected).abs().max()))
    return largest
