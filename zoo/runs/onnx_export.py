"""A net as an ONNX file, compared with torch before it appears."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import replace_atomically

ONNX_NAME = "model.onnx"  # in an export
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class OnnxGraph:
    """A net to be written as ONNX.

    Args:
        net: in evaluation mode; takes tensors in the order of `inputs`, returns one or a tuple of them.
        inputs: by name, with their variable axes: names, or multiples such as `8 * Dim("n")`.
        examples: inputs; the first one traces the net, the others, of other sizes, compare it with torch.
    """

    net: nn.Module
    inputs: Mapping[str, Mapping[int, Any]]
    outputs: Sequence[str]
    examples: Sequence[tuple[Tensor, ...]]


def check_onnx_packages() -> None:
    """Refuse to export without the packages for it: ImportError names what is missing and the extra."""
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX export needs {', '.join(missing)}: pip install zoo[export]")


def write_onnx(graph: OnnxGraph, path: Path) -> float:
    """Write a net as an ONNX file, which appears after a comparison with torch; ImportError without the packages.

    Returns:
        Largest absolute difference between torch and onnxruntime over all examples.
    """
    check_onnx_packages()
    import onnxruntime

    shapes = tuple(
        {axis: torch.export.Dim(size) if isinstance(size, str) else size for axis, size in axes.items()}
        for axes in graph.inputs.values()
    )
    with replace_atomically(path) as temporary:
        torch.onnx.export(
            graph.net,
            graph.examples[0],
            temporary,
            dynamo=True,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        return max(_difference(graph, session, example) for example in graph.examples)


def _difference(graph: OnnxGraph, session: Any, example: tuple[Tensor, ...]) -> float:
    with torch.inference_mode():
        expected = graph.net(*example)
    feeds = {name: value.numpy() for name, value in zip(graph.inputs, example, strict=True)}
    outputs = session.run(list(graph.outputs), feeds)
    pairs = zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True)
    return max(float((torch.from_numpy(output) - tensor).abs().max()) for output, tensor in pairs)
