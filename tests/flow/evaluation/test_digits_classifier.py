import numpy as np
import torch

from zoo.flow.evaluation.digits_classifier import train_digits_classifier
from zoo.flow.evaluation.samples import read_digits


def test_a_few_passes_learn_most_digits():
    train, held_out = read_digits(val_every=2, split_seed=0, resolution=8, channels=1)
    net = train_digits_classifier(train.images(), train.labels, epochs=4)
    with torch.no_grad():
        features = net(held_out.images())
    assert features.shape[1] == 64
    assert np.mean(np.array(net.predict(features)) == np.array(held_out.labels)) > 0.9
    assert not net.training and not any(weight.requires_grad for weight in net.parameters())
