import numpy as np
import pytest
import torch

from zoo.flow.evaluation.digits_classifier import train_digits_classifier
from zoo.flow.evaluation.samples import read_digits


@pytest.fixture(scope="module")
def digits():
    train, held_out = read_digits(val_every=2, split_seed=0, resolution=8, channels=1)
    return train.images(), train.labels, held_out.images(), held_out.labels


def accuracy(net, images, labels):
    with torch.no_grad():
        return float(np.mean(np.array(net.predict(net(images))) == np.array(labels)))


def test_a_few_passes_learn_most_digits(digits):
    images, labels, held_out, held_labels = digits
    net = train_digits_classifier(images, labels, epochs=4)
    assert accuracy(net, held_out, held_labels) > 0.9
    assert (
        net(held_out[:3]).shape == (3, 64) and not net.training and not any(p.requires_grad for p in net.parameters())
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_held_out_accuracy(seed):
    train, held_out = read_digits(val_every=2, split_seed=seed, resolution=8, channels=1)
    net = train_digits_classifier(train.images(), train.labels, seed)
    assert accuracy(net, held_out.images(), held_out.labels) >= 0.985
