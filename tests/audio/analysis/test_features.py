from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.analysis.features import open_features, write_features


def test_arrays_and_tensors_are_mapped(tmp_path: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "a.npy", features)
    np.save(tmp_path / "b.npy", features[None])
    torch.save(torch.from_numpy(features), tmp_path / "c.pt")
    for name in ("a.npy", "b.npy", "c.pt"):
        np.testing.assert_array_equal(open_features(tmp_path / name), features)


def test_what_is_no_features_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "empty.npy", np.zeros((3, 0)))
    for name in ("text.npy", "objects.npy", "flat.npy", "empty.npy"):
        with pytest.raises(ValueError, match=name):
            open_features(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        open_features(tmp_path / "gone.npy")


def test_pieces_become_one_file_or_none(tmp_path: Path) -> None:
    pieces = [np.full((3, frames), float(frames)) for frames in (2, 1)]
    write_features(tmp_path / "a.npy", (3, 3), "<f2", pieces)
    found = open_features(tmp_path / "a.npy")
    assert found.dtype == np.float16 and found.flags.f_contiguous
    np.testing.assert_array_equal(found, np.concatenate(pieces, axis=1))
    with pytest.raises(ValueError, match=r"b\.npy: features of up to 100000 do not fit into float16"):
        write_features(tmp_path / "b.npy", (3, 1), "<f2", [np.full((3, 1), 1e5)])
    assert not (tmp_path / "b.npy").exists()
