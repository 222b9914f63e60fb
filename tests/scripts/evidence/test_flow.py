import torch

from scripts.evidence.flow import control_sets, gaussian


def test_the_gaussian_has_mean_and_covariance_of_the_images() -> None:
    source = torch.randn(30, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    sampled = gaussian(source, 200_000, torch.Generator().manual_seed(1)).flatten(1).double()
    flat = source.flatten(1).double()
    assert torch.allclose(sampled.mean(dim=0), flat.mean(dim=0), atol=0.02)
    assert torch.allclose(torch.cov(sampled.T), torch.cov(flat.T), atol=0.03)


def test_every_control_has_as_many_images_of_each_label_as_wanted() -> None:
    source, labels = torch.randn(40, 1, 2, 2), [1, 2, 2, 2] * 10
    made = control_sets(source, labels, [2, 1, 2])
    assert {name: tuple(images.shape) for name, images in made.items()} == dict.fromkeys(
        ("copier", "gaussian", "class means"), (3, 1, 2, 2)
    )
    means = made["class means"]
    assert torch.allclose(means[0], source[[label == 1 for label in labels]].mean(dim=0))
    assert torch.equal(means[1], means[2])
    assert all((image == source).flatten(1).all(dim=1).any() for image in made["copier"])
