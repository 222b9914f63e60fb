"""The pure parts of the demo on vocoders: crops epoch by epoch, and figures of copy syntheses."""

from itertools import islice

import numpy as np
import pytest
import torch

from scripts.bench.hifigan_baselines import endless_batches
from scripts.evidence.real import vocoders
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.hifigan import VocoderData


def test_nets_take_one_mel() -> None:
    nets = vocoders.generators()
    assert list(nets) == list(vocoders.STEPS)
    assert {net["init_args"]["in_channels"] for net in nets.values()} == {100}


def test_crops_differ_between_epochs() -> None:
    data = VocoderData(None, 16000, 512, corpus=CorpusOptions(embedded_utterances=12), batch_size=4)
    data.prepare_data()
    data.setup("fit")
    first, second = (batch["audio"] for batch in islice(endless_batches(data), 2))  # one batch an epoch
    assert first.shape == second.shape == (4, 512) and not torch.equal(first, second)


def test_figures_are_means_over_clips_with_intervals() -> None:
    rows = [dict.fromkeys(vocoders.MEASURES, value) for value in (1.0, 2.0)]
    figures = vocoders.summarize({"net": rows})
    assert figures["net: mcd"] == 1.5
    assert (figures["net: mcd: low"], figures["net: mcd: high"]) == pytest.approx((1.0, 2.0))


def test_a_copy_has_no_distance() -> None:
    clip = np.sin(np.arange(16000, dtype=np.float32) / 8)
    values = vocoders.score(clip, clip)
    assert (values["m_stft"], values["mcd"], values["periodicity"]) == pytest.approx((0, 0, 0), abs=1e-6)
