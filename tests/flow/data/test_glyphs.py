import numpy as np
import pytest

from zoo.flow.data import glyphs
from zoo.flow.data.datamodule import ImageData
from zoo.flow.data.glyphs import CLASSES, NUMBERS, SIDE, Glyphs, draw

MIDDLE = [0.0, *[0.5] * (NUMBERS - 1)]  # first font, nothing moved


def test_an_image_is_the_same_for_any_number_of_images() -> None:
    few, more = (Glyphs(count, 1, seed=4).sets()[0] for count in (1, 2))
    assert few.classes == list("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    assert few.counts() == dict.fromkeys(CLASSES, 1) and len(more.labels) == 124
    first, same, other = (
        few.source.apply_orientation(61),
        more.source.apply_orientation(122),
        more.source.apply_orientation(123),
    )
    assert first.size == (SIDE, SIDE) and first.mode == "RGB"
    assert np.array_equal(first, same) and not np.array_equal(same, other)


def test_jitter_moves_the_way_it_states() -> None:
    def centre(character: str, **moved: float) -> tuple[float, float]:
        names = ["font", "turn", "right", "down", "scale", "shear"]
        numbers = [moved.get(name, value) for name, value in zip(names, MIDDLE, strict=False)] + MIDDLE[6:]
        weight = draw(character, numbers).sum(axis=2).astype(float)
        weight -= weight[0, 0]
        rows, columns = np.mgrid[:SIDE, :SIDE]
        return float((weight * rows).sum() / weight.sum()), float((weight * columns).sum() / weight.sum())

    still, right, down = centre("o"), centre("o", right=1.0), centre("o", down=1.0)
    assert right == pytest.approx((still[0], still[1] + glyphs.SHIFT * SIDE), abs=0.05)
    assert down == pytest.approx((still[0] + glyphs.SHIFT * SIDE, still[1]), abs=0.05)


def test_no_glyph_is_cut_in_any_font() -> None:
    for number in range(len(glyphs.FONTS)):
        for character in CLASSES:
            pixels = draw(character, [(number + 0.5) / len(glyphs.FONTS), *MIDDLE[1:]]).astype(int)
            border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
            assert np.ptp(border, axis=0).max() == 0, character


def test_the_data_module_draws_them() -> None:
    data = ImageData(image_resolution=8, channels=3, batch_size=4, glyphs=Glyphs(2, 1))
    data.prepare_data()
    data.setup("fit")
    assert data.classes == list(CLASSES) and (len(data.train_set), len(data.val_set)) == (124, 62)
    assert data.train_set[0, 3]["x1"].shape == (3, 8, 8) and data.train_set[0, 3]["label"] == 2
    with pytest.raises(ValueError, match="only one of root"):
        ImageData(hub="a/b", glyphs=Glyphs(2, 1))
    with pytest.raises(ValueError, match="per_class"):
        Glyphs(0)
