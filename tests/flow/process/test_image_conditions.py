import pytest
import torch

from zoo.flow.process.image_conditions import Inpainting, SuperResolution

IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 12).reshape(2, 3, 8, 12)


def test_inpainting_hides_a_rectangle_of_each_image() -> None:
    condition = Inpainting(0.25, 0.5)
    messages = condition.from_training(IMAGES, [5, 6])
    mask, remaining = messages[:, :1], messages[:, 1:]
    assert messages.shape == (2, condition.channels(3), 8, 12) and condition.masked
    assert torch.equal(remaining, IMAGES * (1 - mask)) and set(mask.unique().tolist()) == {0.0, 1.0}
    for hole in mask[:, 0].bool():
        rows, columns = hole.any(dim=1), hole.any(dim=0)
        assert torch.equal(hole, rows[:, None] & columns[None])  # one rectangle
        assert 2 <= rows.sum() <= 4 and 3 <= columns.sum() <= 6
    assert torch.equal(condition.from_training(IMAGES[1:], [6])[0], messages[1])  # of its seed alone
    conditions = condition.from_user(IMAGES, torch.ones(2, 1, 8, 12), [1, 2])
    assert not conditions[:, 1:].any() and conditions[:, :1].all()
    sizes = Inpainting(1.0, 1.0).from_training(IMAGES, [1, 2])
    assert sizes[:, :1].all()


def test_super_resolution_gives_the_enlarged_small_image() -> None:
    condition = SuperResolution(4)
    messages = condition.from_training(IMAGES, [0, 0])
    small = IMAGES.unflatten(3, (3, 4)).unflatten(2, (2, 4)).mean(dim=(3, 5))
    torch.testing.assert_close(messages, condition.from_user(small, None, [0, 0]))
    assert messages.shape == IMAGES.shape and condition.channels(3) == 3 and condition.side(64) == 16
    even = torch.full((1, 1, 8, 8), 0.3)
    torch.testing.assert_close(condition.from_training(even, [0]), even)
    with pytest.raises(ValueError, match="no multiple of the factor 4"):
        condition.from_training(torch.zeros(1, 1, 6, 6), [0])
