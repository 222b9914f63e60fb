from types import SimpleNamespace

import pytest
import torch

from scripts.bench import hifigan_baselines as baselines
from scripts.bench.tools import interleave_with_trainer
from tests.training.callbacks.parts import make_trainer
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.hifigan import Generator, HiFiGANTask, MultiPeriodDiscriminator, VocoderData
from zoo.hifigan.data import ValidationSplit

WEIGHTS = {"d/mpd": 1.0, "g/adv_mpd": 1.0, "g/fm_mpd": 2.0, "g/mel": 45.0}


def tiny_task() -> HiFiGANTask:
    torch.manual_seed(0)
    mel = {"sample_rate": 8000, "n_fft": 256, "hop_length": 64, "win_length": 256, "n_mels": 8, "f_max": 4000.0}
    return HiFiGANTask(
        Generator(8, 8, (8, 8), (16, 16), "2", (3,), ((1, 2),)),
        {"mpd": MultiPeriodDiscriminator((2, 3), channel_mult=1 / 32)},
        optimizer_g=lambda p: torch.optim.AdamW(p, 1e-3),
        optimizer_d=lambda p: torch.optim.AdamW(p, 1e-3),
        loss_mel=LogMel(**mel),
        mel=LogMel(**mel),
        sample_rate=8000,
        loss_weights=WEIGHTS,
    )


@pytest.mark.parametrize("step", [baselines.PlainStep, baselines.OriginalStep])
def test_plain_loops_train_like_the_task(tmp_path, step):
    # without spectral norm, whose state depends on the number of passes, all orders give the same weights
    data = VocoderData(
        None, 8000, 1024, ValidationSplit(items=1), corpus=CorpusOptions(embedded_utterances=6), batch_size=2
    )
    data.prepare_data()
    data.setup("fit")
    task = tiny_task()
    settings = {"limit_val_batches": 0, "use_distributed_sampler": False}
    trainer = make_trainer(max_steps=10, default_root_dir=tmp_path, **settings)
    other = step(task, baselines.endless_batches(data))
    before = torch.nn.utils.parameters_to_vector(other.generator.parameters()).clone()
    interleave_with_trainer(SimpleNamespace(trainer=trainer, model=task, datamodule=data), other, rounds=2)
    results = torch.nn.utils.parameters_to_vector(other.generator.parameters())
    expected = torch.nn.utils.parameters_to_vector(task.generator.parameters())
    assert (results - before).abs().max() > 1e-3
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-5)
