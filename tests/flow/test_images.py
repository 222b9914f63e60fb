import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.flow.images import ArrayPictures, DecodedPictures, FilePictures, StoredPixels, decode_all, stamps, to_values


def pictures(folder: Path, count: int = 3) -> FilePictures:
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.new("RGB", (10, 6), (40 * i, 0, 255)).save(path)
    return FilePictures(folder, paths)


@pytest.mark.shared
def test_resizing_equals_the_originals(shared: Path) -> None:
    golden = np.load(shared / "golden" / "flow" / "fid_and_image.npz")
    source = ArrayPictures(golden["img"][None])
    pixels = source.pixels(0, 16, 3)
    np.testing.assert_allclose(to_values(pixels[None])[0].numpy(), golden["transformed"], atol=1e-6)


def test_files_are_decoded_resized_and_scaled(tmp_path: Path) -> None:
    read = DecodedPictures(pictures(tmp_path), 4, 3)
    images = read([2, 0])
    assert images.shape == (2, 3, 4, 4) and images.dtype == torch.float32 and images.is_contiguous()
    torch.testing.assert_close(images[0, :, 1, 2], torch.tensor([80 / 127.5 - 1, -1, 1]))
    grey = DecodedPictures(pictures(tmp_path), 4, 1)([1])
    assert grey.shape == (1, 1, 4, 4)
    assert torch.equal(pickle.loads(pickle.dumps(read))([2, 0]), images)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "CMYK"])
def test_other_modes_are_converted(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("L", (8, 8), 255).convert(mode).save(path)
    assert FilePictures(tmp_path, [path]).pixels(0, 8, 3).shape == (8, 8, 3)


def test_memory_and_files_give_the_same(tmp_path: Path) -> None:
    files = pictures(tmp_path)
    stored = StoredPixels(np.stack(list(decode_all(files, 6, 3, progress=False))))
    assert torch.equal(stored([1, 1, 2]), DecodedPictures(files, 6, 3)([1, 1, 2]))
    stored([0]).zero_()
    assert float(stored([0]).abs().max()) == 1  # what is handed out is a copy


def test_grey_arrays_may_have_a_channel() -> None:
    images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    assert np.array_equal(ArrayPictures(images[..., None]).pixels(1, 4, 1)[..., 0], images[1])
    assert ArrayPictures(images).pixels(1, 4, 3).shape == (4, 4, 3)


def test_broken_images_are_named_together_and_nothing_misplaced(tmp_path: Path) -> None:
    files = pictures(tmp_path, 6)
    files.paths[1].write_bytes(b"no image")
    whole = files.paths[3].read_bytes()
    files.paths[3].write_bytes(whole[: len(whole) // 2])
    files.paths[4].unlink()
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(files.paths[5])
    got = []
    with pytest.raises(ValueError, match=r"4 of 6 images cannot be read, .*: 1.png: .*; 3.png: .*; 4.png: .*; 5.png: "):
        got.extend(decode_all(files, 4, 3, progress=False))
    assert len(got) <= 1


def test_stamps_change_with_files_order_and_size(tmp_path: Path) -> None:
    files = pictures(tmp_path)
    before = stamps(files, 4, 3)
    assert before == stamps(files, 4, 3) != stamps(files, 5, 3)
    assert before != stamps(FilePictures(tmp_path, files.paths[::-1]), 4, 3)
    files.paths[0].write_bytes(files.paths[0].read_bytes() + b"x")
    assert before != stamps(files, 4, 3)
