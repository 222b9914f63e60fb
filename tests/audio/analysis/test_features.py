from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.analysis.features import check_features, load_features, read_frames, write_features


def test_arrays_and_tensors_are_mapped(tmp_path: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "a.npy", features)
    np.save(tmp_path / "b.npy", features[None])
    torch.save(torch.from_numpy(features), tmp_path / "c.pt")
    for name in ("a.npy", "b.npy", "c.pt"):
        np.testing.assert_array_equal(load_features(tmp_path / name), features)


def test_what_is_no_features_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "empty.npy", np.zeros((3, 0)))
    for name in ("text.npy", "objects.npy", "flat.npy", "empty.npy"):
        with pytest.raises(ValueError, match=name):
            load_features(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        load_features(tmp_path / "gone.npy")


def test_pieces_become_one_file_or_none(tmp_path: Path) -> None:
    pieces = [np.full((3, frames), float(frames)) for frames in (2, 1)]
    write_features(tmp_path / "a.npy", (3, 3), "<f2", pieces)
    result = load_features(tmp_path / "a.npy")
    assert result.dtype == np.float16 and result.flags.f_contiguous
    np.testing.assert_array_equal(result, np.concatenate(pieces, axis=1))
    with pytest.raises(ValueError, match=r"b\.npy: features of up to 100000 do not fit into float16"):
        write_features(tmp_path / "b.npy", (3, 1), "<f2", [np.full((3, 1), 1e5)])
    assert not (tmp_path / "b.npy").exists()


def test_features_must_be_finite(tmp_path: Path) -> None:
    features = np.zeros((2, 8), np.float16)
    features[1, 5] = np.inf
    np.save(tmp_path / "a.npy", features)
    assert read_frames(tmp_path / "a.npy", 0, 5).dtype == np.float32
    with pytest.raises(ValueError, match=r"a\.npy: NaN or infinite .* 4 to 7"):
        read_frames(tmp_path / "a.npy", 4)


def test_shape_of_another_net_or_audio_is_refused() -> None:
    check_features(Path("a.npy"), (4, 9), 10, channels=4)
    for shape in ((4, 8), (4, 12), (5, 10), (10, 4)):
        with pytest.raises(ValueError, match=r"a\.npy: found .*expected \(C, F\) = \(4, 10\)"):
            check_features(Path("a.npy"), shape, 10, channels=4)
