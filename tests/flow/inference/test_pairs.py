from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.flow.conditions import Shade, autoencoder
from zoo.flow import ConditionalOT, DiT, Guidance, LatentSpace, Sampler, Solver
from zoo.flow.data.pair_data import PairData
from zoo.flow.inference.pairs import make_pairs
from zoo.flow.inference.requests import GenerationRequest


def teacher(guidance: Guidance | None = None, chunk: int = 8) -> Sampler:
    return Sampler(Shade(), ConditionalOT(0.0), Solver("heun2", 6), guidance, chunk=chunk).eval()


def make(output: Path, sampler: Sampler | None = None, count: int = 10, **kwargs: object) -> dict[str, int]:
    request = GenerationRequest(count, 0, kwargs.pop("labels", None))
    return make_pairs(sampler or teacher(), output, request, **{"shard_size": 4, **kwargs})


def content(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


def test_replaying_the_noise_gives_the_sample(tmp_path: Path) -> None:
    sampler = teacher(guidance=Guidance(2.0))
    sampler.classes, sampler.resize, sampler.background = ["cat", "dog", "wild"], "crop", (0, 0, 9)
    assert make(tmp_path / "pairs", sampler, labels=[1, 2]) == {"made": 10, "skipped": 0}
    data = PairData(str(tmp_path / "pairs"), batch_size=4, val_share=0.5)
    data.setup("fit")
    assert (data.framing.resize, data.framing.background) == ("crop", (0, 0, 9))
    assert data.classes == sampler.classes and set(content(tmp_path / "pairs")["label"]) == {1, 2}
    for number in range(5):
        for part in (data.train_set, data.val_set):
            pair = part[number]
            again = sampler.solver.solve(sampler.field([pair["label"]]), pair["x0"][None]).x[0]
            torch.testing.assert_close(again, pair["x1"])


def test_pairs_do_not_depend_on_how_they_are_made(tmp_path: Path) -> None:
    make(tmp_path / "one", shard_size=100)
    make(tmp_path / "chunked", teacher(chunk=3), shard_size=5)
    for rank in (1, 0):
        counts = make(tmp_path / "ranks", rank=rank, world_size=2)
        assert counts == {"made": 6 - 2 * rank, "skipped": 0}
    assert len(list((tmp_path / "ranks").glob("*.npy"))) == 3
    expected = content(tmp_path / "one")
    for name in ("chunked", "ranks"):
        result = content(tmp_path / name)
        for key in ("seed", "label"):
            assert np.array_equal(result[key], expected[key])
        np.testing.assert_allclose(result["x1"], expected["x1"], rtol=1e-5, atol=1e-6)


def test_a_second_call_makes_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path)
    before = content(tmp_path)
    (tmp_path / "pairs-00001.npy").unlink()
    (tmp_path / ".pairs-00001.npy.tmp-1").write_bytes(b"torn")
    remaining = (tmp_path / "pairs-00002.npy").stat().st_mtime_ns
    assert make(tmp_path, run="elsewhere") == {"made": 4, "skipped": 6}
    assert np.array_equal(content(tmp_path), before)
    assert (tmp_path / "pairs-00002.npy").stat().st_mtime_ns == remaining
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", *(f"pairs-0000{i}.npy" for i in range(3))]


def test_pairs_of_latents_are_latents_of_the_autoencoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    space = LatentSpace(autoencoder())
    space.fit(torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.25]))
    net = DiT(4, 2, patch=1, depth=1, dim=8, heads=1, num_classes=3)
    torch.nn.init.normal_(net.tail.weight)
    sampler = Sampler(net, ConditionalOT(0.0), Solver("euler", 2), chunk=8, latents=space).eval()
    make(tmp_path / "pairs", sampler, 6)
    data = PairData(str(tmp_path / "pairs"), batch_size=2, val_share=0.2)
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(latents=space))
    data.setup("fit")
    pairs = [data.train_set[number] for number in range(5)]
    separate = torch.stack([pair["x1"] for pair in pairs])
    labels, seeds = [pair["label"] for pair in pairs], content(tmp_path / "pairs")["seed"][:5].tolist()
    with torch.no_grad():
        made = sampler.solver.solve(sampler.field(labels), torch.stack([pair["x0"] for pair in pairs])).x
        torch.testing.assert_close(space.normalise(separate), made)
        torch.testing.assert_close(data.train_set.examples(range(5)), sampler.sample(labels, seeds))
    mean, deviation = data.statistics()
    torch.testing.assert_close(mean, separate.double().mean(dim=(0, 2, 3)))
    torch.testing.assert_close(deviation, separate.double().std(dim=(0, 2, 3), correction=0))
    make(tmp_path / "points")
    pixels = PairData(str(tmp_path / "points"), val_share=0.5)
    other = LatentSpace(autoencoder(block_out_channels=[4, 6]))
    cases = (data, None, "of another autoencoder"), (data, other, "of another"), (pixels, space, "has no latents")
    for each, latents, message in cases:
        each.trainer = SimpleNamespace(lightning_module=SimpleNamespace(latents=latents))
        with pytest.raises(ValueError, match=message):
            each.setup("fit")
