from pathlib import Path

import numpy as np
import torch

from tests.flow.conditions import autoencoder, net, prepared, quiet_task, text
from zoo.blocks.autoencoder import sample_posterior
from zoo.flow import DiT, ImageData, Inpainting, LatentData, OptimalTransport, PooledTransport
from zoo.flow.nets.latent_space import LatentSpace
from zoo.flow.process.coupling import match_pairs
from zoo.flow.process.sampling import noise
from zoo.training.array_files import array_paths
from zoo.training.resume import item_seed


def space() -> LatentSpace:
    return LatentSpace(autoencoder())


def images() -> ImageData:
    return ImageData(image_resolution=8, channels=1, max_per_class=10, flips=True)


def data(folder: Path, latents: LatentSpace | None, **arguments) -> LatentData:
    return prepared(LatentData(images(), 4, str(folder), shard_size=32, **arguments), latents=latents)


def test_cached_latents_are_those_of_encoding_on_the_fly(tmp_path):
    latents = space()
    made = data(tmp_path, latents)
    assert made.sample_shape == (2, 4, 4) and len(made.train_set) == 90 and len(made.classes) == 10
    keys = [(3, 0), (3, 7), (5, 7)]
    batch, reference = made.train_set.__getitems__(keys), made.images.train_set.__getitems__(keys)
    seeds = [item_seed(made.seed, *key) for key in keys]
    moments = latents.encode(reference["x1"])  # mirrored as the images' own items are
    expected = sample_posterior(moments, noise([item_seed(seed, 0, 2) for seed in seeds], (2, 4, 4)))
    torch.testing.assert_close(batch["x1"], expected, atol=2e-3, rtol=2e-3)  # moments are stored in float16
    assert torch.equal(batch["label"], reference["label"])
    assert torch.equal(batch["x0"], noise(seeds, (2, 4, 4))) and batch["seeds"] == reference["seeds"]
    assert torch.equal(made.val_set[1]["x1"], made.val_set.data([1])[0])  # the mean
    assert made.train_set.examples([0]).shape == (1, 1, 8, 8)
    mean, deviation = made.statistics()
    stored = torch.from_numpy(np.concatenate(list(made.train_set.moments.arrays()))).double()
    first, log_variance = stored.chunk(2, dim=2)
    torch.testing.assert_close(mean, first.mean(dim=(0, 1, 3, 4)))
    variance = first.var(dim=(0, 1, 3, 4), correction=0) + log_variance.exp().mean(dim=(0, 1, 3, 4))
    torch.testing.assert_close(deviation, variance.sqrt())


def test_a_killed_encoding_goes_on_and_others_have_their_own(tmp_path):
    latents = space()
    data(tmp_path, latents)
    (described,) = tmp_path.glob("latents-train-*.json")
    shards = array_paths(described.with_suffix(""), 90, 32)
    before = [path.read_bytes() for path in shards]
    shards[1].unlink()
    times = [path.stat().st_mtime_ns for path in shards if path.exists()]
    data(tmp_path, latents)
    assert [path.read_bytes() for path in shards] == before
    assert [shards[0].stat().st_mtime_ns, shards[2].stat().st_mtime_ns] == times
    for other in (autoencoder(seed=1), autoencoder(norm_num_groups=1)):
        data(tmp_path, LatentSpace(other))
    assert len(sorted(tmp_path.glob("latents-train-*.json"))) == 3


def test_noise_is_paired_with_latents_on_the_scale_of_the_flow():
    latents = space()
    latents.fit(torch.tensor([3.0, -1.0]), torch.tensor([0.01, 10.0]))
    net = DiT(4, 2, patch=1, depth=1, dim=16, heads=2, num_classes=0)
    task = quiet_task(net, label_drop=0.0, latents=latents, coupling=OptimalTransport())
    torch.manual_seed(0)
    x0, x1 = torch.randn(2, 8, 2, 4, 4).unbind()
    batch = {"x1": latents.denormalise(x1), "x0": x0, "label": torch.zeros(8), "seeds": list(range(8))}
    assert torch.equal(task.prepare_training_batch(batch)["x0"], x0[match_pairs(x0, x1)])


def test_pools_are_paired_on_the_scale_of_the_flow(tmp_path):
    latents = space()
    latents.fit(torch.tensor([3.0, -1.0]), torch.tensor([0.01, 10.0]))
    made = data(tmp_path, latents, pooled=PooledTransport(90))
    made.train_dataloader()
    batch = made.train_set.__getitems__([(0, item) for item in range(90)])
    for label in batch["label"].unique():
        rows = batch["label"] == label
        order = match_pairs(batch["x0"][rows], latents.normalise(batch["x1"][rows]))
        assert torch.equal(order, torch.arange(int(rows.sum())))


def test_conditions_reach_latents(tmp_path):
    latents, encoder = space(), text()
    made = LatentData(images(), 4, str(tmp_path), shard_size=32)
    made.images.captions, made.images.cache = "a {}", tmp_path
    prepared(made, latents=latents, text=encoder, image_condition=Inpainting(), net=net(condition_channels=3))
    keys = [(0, 5), (2, 5), (0, 80)]
    batch, plain = made.train_set.__getitems__(keys), made.images.train_set.__getitems__(keys)
    for name, value in plain["conditions"].items():
        assert torch.equal(batch["conditions"][name], value)
    messages = latents.condition(batch["conditions"]["image"], masked=True)
    assert messages.shape == (3, 1 + 2, 4, 4)
    remaining = latents.normalise(latents.encode(batch["conditions"]["image"][:, 1:]).chunk(2, dim=1)[0])
    torch.testing.assert_close(messages[:, 1:], remaining)
    assert (messages[:, :1].sum() * 4 >= batch["conditions"]["image"][:, :1].sum()) and messages[:, 0].max() == 1
