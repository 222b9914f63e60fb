"""`zoo export`: weights to use elsewhere."""

from __future__ import annotations

from pathlib import Path


def main(path: Path, output: Path, ema: bool = True, onnx: bool = False) -> None:
    """Write a run's weights as fused safetensors with config and model card, and as ONNX.

    Args:
        path: run folder or checkpoint.
        output: folder to write; appears only when complete.
        ema: export the averaged weights where the checkpoint holds them.
        onnx: also as ONNX, compared with torch (needs the extra `export`): model.onnx of a vocoder or of Miipher-2,
            encoder.onnx, denoiser.onnx and so on of AudioSR.
    """
    from zoo.runs.export import check_onnx, write_export
    from zoo.runs.load import load, read_parts

    if onnx:
        check_onnx()
    specs, _, _ = read_parts(path, ema)
    model = load(path, ema=ema)
    form = model.onnx_form() if onnx else None  # refused before anything is written
    source, step = specs.get("source") or path.name, specs.get("step")
    differences = write_export(output, specs, model.parts(), source, step, model.usage, form)
    print(f"wrote {output}")
    for name, difference in differences.items():
        print(f"wrote {output / name}: largest difference from torch {difference:.1e}")
