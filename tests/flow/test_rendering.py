from pathlib import Path

import numpy as np
from PIL import Image

from zoo.flow import rendering


def test_gif_has_all_frames_and_rests_on_the_last(tmp_path: Path) -> None:
    pictures = np.zeros((5, 8, 8, 3), dtype=np.uint8)
    for number in range(5):
        pictures[number, number] = 255 - 40 * number
        pictures[number, :, 0, -1] = 100
    rendering.write_gif(tmp_path / "a.gif", pictures)
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.n_frames == 5 and animation.info["loop"] == 0
        durations = []
        for number in range(5):
            animation.seek(number)
            durations.append(animation.info["duration"])
            assert np.array_equal(np.array(animation.convert("RGB")), pictures[number])
    assert durations == [30, 30, 30, 30, 1500]
