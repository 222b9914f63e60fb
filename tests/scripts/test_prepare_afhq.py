from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scripts.prepare_afhq import write_flat


def test_validation_images_become_one_flat_folder(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(2):
                pixels = np.full((9, 13, 3), 40 * number, np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    assert write_flat(tmp_path, tmp_path / "flat", 8) == 4
    assert sorted(path.stem for path in (tmp_path / "flat").iterdir()) == [
        f"{name}_0000{number}" for name in ("cat", "dog") for number in range(2)
    ]
    assert Image.open(tmp_path / "flat" / "dog_00001.png").size == (8, 8)
    (tmp_path / "flat" / "mine.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds 1 other files, e\.g\. mine\.png"):
        write_flat(tmp_path, tmp_path / "flat", 8)
    with pytest.raises(ValueError, match="expected the folders train and val"):
        write_flat(tmp_path / "train", tmp_path / "other", 8)
