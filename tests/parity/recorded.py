"""A golden folder whose meta.json says of each array how far its float32 recording is from float64."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Recorded:
    """Arrays of a folder, and comparison with them.

    Args:
        exact: share of an array's largest value that float64 may be off, for constants that were float32.
    """

    def __init__(self, folder: Path, exact: float) -> None:
        self.folder, self.exact = folder, exact
        self.cases = json.loads((folder / "meta.json").read_text())["cases"] if folder.is_dir() else {}

    def arrays(self, name: str) -> dict[str, Tensor]:
        return arrays(self.folder / name)

    def close(self, results: Tensor, stored: dict[str, Tensor], name: str, case: str) -> None:
        """In float64 within `exact`, in float32 within 20 times the rounding of the recording."""
        facts = self.cases[case]["arrays"].get(f"{name}.f32", {})
        scale = max(float(stored[f"{name}.f32"].abs().max()), 1e-3)
        if results.dtype == torch.float64 and f"{name}.f64" in stored:
            torch.testing.assert_close(results, stored[f"{name}.f64"], rtol=0, atol=self.exact * scale)
            return
        bound = max(20 * facts.get("max_abs_diff_to_f64", 0.0), 1e-6 * scale)
        torch.testing.assert_close(results.float(), stored[f"{name}.f32"], rtol=0, atol=bound)


def arrays(path: Path) -> dict[str, Tensor]:
    with np.load(path) as archive:
        return {key: torch.from_numpy(value) for key, value in archive.items()}


def close(actual: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)
