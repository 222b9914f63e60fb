import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.flow.data.images import ArrayImages, DecodedImages, FileImages, Framing, decode_all, to_values


def pictures(folder: Path, count: int = 3) -> FileImages:
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.new("RGB", (10, 6), (40 * i, 0, 255)).save(path)
    return FileImages(folder, paths)


def test_resizing_equals_the_originals(shared: Path) -> None:
    golden = np.load(shared / "golden" / "flow" / "fid_and_image.npz")
    source = ArrayImages(golden["img"][None])
    pixels = source.pixels(0, Framing(16, 3))
    np.testing.assert_allclose(to_values(pixels[None])[0].numpy(), golden["transformed"], atol=1e-6)


def test_files_are_decoded_resized_and_scaled(tmp_path: Path) -> None:
    read = DecodedImages(pictures(tmp_path), Framing(4, 3))
    images = read([2, 0])
    assert images.shape == (2, 3, 4, 4) and images.dtype == torch.float32 and images.is_contiguous()
    torch.testing.assert_close(images[0, :, 1, 2], torch.tensor([80 / 127.5 - 1, -1, 1]))
    grey = DecodedImages(pictures(tmp_path), Framing(4, 1))([1])
    assert grey.shape == (1, 1, 4, 4)
    assert torch.equal(pickle.loads(pickle.dumps(read))([2, 0]), images)


def test_broken_images_are_named_together_and_nothing_misplaced(tmp_path: Path) -> None:
    files = pictures(tmp_path, 6)
    files.paths[1].write_bytes(b"no image")
    complete = files.paths[3].read_bytes()
    files.paths[3].write_bytes(complete[: len(complete) // 2])
    files.paths[4].unlink()
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(files.paths[5], format="TIFF")
    got = []
    with pytest.raises(ValueError, match=r"4 of 6 .*: 1.png: .*; 3.png: .*; 4.png: .*; 5.png: mode F"):
        got.extend(decode_all(files, Framing(4, 3), progress=False))
    assert len(got) <= 1


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options: object) -> FileImages:
    image.save(folder / name, **options)
    return FileImages(folder, [folder / name])


def test_images_are_turned_as_their_exif_data_state(tmp_path: Path) -> None:
    """Orientation 6: the camera was turned, the first row is the right side."""
    values = np.array([[0, 80], [160, 240]], dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    source = saved(tmp_path, Image.fromarray(values), exif=exif)
    assert source.pixels(0, Framing(2, 1))[..., 0].tolist() == [[160, 0], [240, 80]]
    assert saved(tmp_path, Image.fromarray(values)).pixels(0, Framing(2, 1))[..., 0].tolist() == values.tolist()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_show_the_background(tmp_path: Path, mode: str) -> None:
    pixels = np.full((4, 4, 4), 40, dtype=np.uint8)
    pixels[:2, :, 3], pixels[2:, :, 3] = 0, 255
    image = Image.fromarray(pixels)
    source = saved(tmp_path, image.quantize() if mode == "P" else image.convert(mode))
    result = source.pixels(0, Framing(4, 3, background=(10, 20, 200)))
    assert result[0, 0].tolist() == [10, 20, 200] and result[3, 0].tolist() == [40, 40, 40]
    assert source.pixels(0, Framing(4, 3))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_grey_of_16_bits_keeps_its_range(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    source = saved(tmp_path, Image.fromarray(values), name)
    assert source.pixels(0, Framing(2, 1))[..., 0].tolist() == [[0, 100], [200, 255]]
    assert source.pixels(0, Framing(2, 3))[1, 0].tolist() == [200] * 3


@pytest.mark.parametrize(
    ("bits", "white_is_zero", "data"),
    [(12, False, bytes.fromhex("000fff800400")), (16, True, np.array([65535, 0, 32767, 49151], "<u2").tobytes())],
)
def test_grey_of_a_tiff_is_read_as_its_tags_state(tmp_path: Path, bits: int, white_is_zero: bool, data: bytes) -> None:
    tags = {256: 2, 257: 2, 258: bits, 259: 1, 262: int(not white_is_zero), 273: 8, 277: 1, 278: 2, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack("<2sHI", b"II", 42, 8 + len(data)), struct.pack("<H", len(tags))
    (tmp_path / "a.tif").write_bytes(head[0] + data + head[1] + entries + bytes(4))
    source = FileImages(tmp_path, [tmp_path / "a.tif"])
    assert source.pixels(0, Framing(2, 1))[..., 0].tolist() == [[0, 255], [128, 64]]


def test_crop_keeps_proportions_and_takes_the_centre() -> None:
    pixels = np.zeros((4, 12), dtype=np.uint8)
    pixels[:, 4:8] = 200
    for values in (pixels, pixels.T):
        source = ArrayImages(np.ascontiguousarray(values)[None])
        assert (source.pixels(0, Framing(4, 1, "crop")) == 200).all()
        assert (source.pixels(0, Framing(2, 1, "crop")) == 200).all()
        assert source.pixels(0, Framing(4, 1)).min() == 0
    with pytest.raises(ValueError, match="background is red, green and blue"):
        Framing(4, background=(0, 0, 256))
