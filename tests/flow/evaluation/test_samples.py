import numpy as np
import pytest
import torch

from zoo.flow import ImageData, rendering
from zoo.flow.data.images import Framing
from zoo.flow.evaluation.metrics import frechet_distance
from zoo.flow.evaluation.samples import matching_labels, read_digits, read_reference, read_samples


def pictures(count=4, size=3, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def write(folder, pixels, names=None):
    for index, image in enumerate(pixels):
        rendering.write_png(folder / (names[index] if names else f"{index}.png"), image)
    return folder


def test_a_sampled_folder_keeps_the_order_of_its_labels(tmp_path):
    pixels = pictures(12)
    folder = write(tmp_path / "s", pixels)
    lines = [f"{index}.png,{1 + index % 3},7" for index in range(12)]
    (folder / "labels.csv").write_text("\n".join(["file,label,seed", *lines]))
    samples = read_samples(folder)
    assert np.array_equal(samples.pixels, pixels) and samples.labels == [1 + index % 3 for index in range(12)]
    (folder / "settings.json").write_text('{"classes": ["a", "b", "c"]}')
    assert samples.classes is None and read_samples(folder).classes == ["a", "b", "c"]
    (folder / "labels.csv").write_text("file,label,seed\n0.png,0,1\n")
    assert read_samples(folder).labels is None
    for rows, message in (
        ("file,label,seed\n0.png,1,1\n90.png,1,1\n", r"1 of the 2 images .* missing \(90.png\)"),
        ("file,seed\n0.png,1\n", "expected the columns"),
        ("file,label,seed\n0.png,1,1\n1.png,0,1\n", "some labels are 0"),
    ):
        (folder / "labels.csv").write_text(rows)
        with pytest.raises(ValueError, match=message):
            read_samples(folder)


def test_flat_and_class_folders(tmp_path, caplog):
    pixels = pictures(2, channels=3)
    flat = read_samples(write(tmp_path / "flat", pixels))
    assert np.array_equal(flat.pixels, pixels) and flat.labels is None
    write(tmp_path / "classes" / "b", pixels[:1])
    write(tmp_path / "classes" / "a", pixels[1:])
    sorted_ = read_samples(tmp_path / "classes", framing=Framing(6, 1))
    assert sorted_.pixels.shape == (2, 6, 6, 1) and sorted_.labels == [1, 2] and sorted_.classes == ["a", "b"]
    write(tmp_path / "classes", pixels[:1], ["overview.png"])
    assert read_samples(tmp_path / "classes").classes == ["a", "b"] and "such as overview.png" in caplog.text
    write(tmp_path / "set" / "train" / "a", pixels)
    write(tmp_path / "set" / "valid" / "a", pixels)
    with pytest.raises(ValueError, match=r"training and held-out images: name one of .*train and .*valid"):
        read_samples(tmp_path / "set")


def test_the_digits_are_split_as_in_training():
    data = ImageData(image_resolution=8, channels=1, val_every=3, split_seed=4)
    data.setup("fit")
    train, held_out = read_digits(3, 4, 8, 1)
    assert len(train) == len(data.train_set) and len(held_out) == len(data.val_set) and held_out.classes == data.classes
    items = [data.val_set[index] for index in (0, 100)]
    assert all(torch.equal(held_out.images()[index], item["x1"]) for index, item in zip((0, 100), items, strict=True))


def test_statistics_of_the_fields_tools(tmp_path):
    rows = np.random.default_rng(0).standard_normal((30, 4))
    mean, covariance = rows.mean(0), np.cov(rows, rowvar=False)
    np.savez(tmp_path / "edm.npz", mu=mean, sigma=covariance)
    # ADM's hold the images too, and statistics of other features
    others = {"mu_s": mean[:2], "sigma_s": covariance[:2, :2]}
    np.savez_compressed(tmp_path / "adm.npz", arr_0=pictures(), mu=mean, sigma=covariance, **others)
    for name in ("edm", "adm"):
        available = read_reference(tmp_path / f"{name}.npz", Framing(8, 3))
        assert available.mean.dtype == torch.float64
        assert frechet_distance(available, torch.from_numpy(rows)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pictures(3).astype(float)}, "expected images"),
        ({"images": pictures(3), "labels": [0, 1, 2]}, "expected labels"),
        ({"images": pictures(3), "labels": [1, 2]}, "expected labels"),
        ({"images": pictures(3), "labels": np.array([1, 2, print], dtype=object)}, "Object arrays"),
        ({"mu": np.zeros(3)}, r"expected floats mu \(D,\) and sigma \(D, D\)"),
        ({"mu": np.array([1.0, 2.0, np.nan]), "sigma": np.eye(3)}, "not finite"),
        ({"mu": np.zeros(3), "sigma": np.triu(np.ones((3, 3)))}, "not symmetric"),
        ({"mu": np.zeros(3), "sigma": -np.eye(3)}, "no mean and covariance"),
        ({"mu": np.array([1.0, 2.0, print], dtype=object)}, "Object arrays"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ValueError, match=rf"s\.npz: .*{message}"):
        read_reference(tmp_path / "s.npz", Framing(8, 1))


def test_matching_labels_keep_the_shares():
    assert matching_labels([1, 2, 2, 2], 8) == [1, 1, 2, 2, 2, 2, 2, 2]
    assert matching_labels([3, 1], 3) in ([1, 1, 3], [1, 3, 3])
    assert len(matching_labels([1, 1, 1, 2, 2, 3], 1000)) == 1000
