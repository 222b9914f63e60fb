"""`zoo export`: weights to use elsewhere."""

from __future__ import annotations

from pathlib import Path


def main(path: Path, output: Path, ema: bool = True, onnx: bool = False) -> None:
    """Write a run's weights as fused safetensors with config and model card, and as ONNX.

    Args:
        path: run folder or checkpoint.
        output: folder to write; appears only when complete.
        ema: export the averaged weights where the checkpoint holds them.
        onnx: also write model.onnx and print its largest difference from torch (needs the extra `export`).
    """
    from zoo.runs.export import write_export
    from zoo.runs.load import load, read_parts

    specs, _, _ = read_parts(path, ema)
    model = load(path, ema=ema)
    write_export(output, specs, model.parts(), specs.get("source") or path.name, specs.get("step"), model.usage)
    print(f"wrote {output}")
    if onnx:
        difference = model.export_onnx(output / "model.onnx")
        print(f"wrote {output / 'model.onnx'}: largest difference from torch {difference:.1e}")
