"""The stages' tasks: losses, accumulation, modes, mixing, what is saved."""

from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

from tests.miipher.parts import backbone, cleaner, generator
from tests.training.callbacks.parts import make_trainer
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.miipher.data.datamodule import SpeakerSplit, VocoderSegments
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.task import AdapterTask
from zoo.miipher.task_backbone import BackboneTask
from zoo.miipher.task_vocoder import VocoderTask

WEIGHTS = {"mae": 1.0, "mse": 1.0, "sc": 1.0}
SGD = partial(torch.optim.SGD, lr=0.1)


def batch(items: int = 4, samples: int = 3200, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    clean = 0.1 * torch.randn(items, samples, generator=generator)
    noisy = clean + 0.05 * torch.randn(items, samples, generator=generator)
    lengths = torch.tensor([samples - 640 * (i % 3) for i in range(items)])
    return {"clean": clean, "input": noisy, "lengths": lengths}


def vocoder_task(encoder, **arguments) -> VocoderTask:
    weights = {"d/mpd": 1.0, "g/adv_mpd": 1.0, "g/fm_mpd": 2.0, "g/mel": 45.0}
    return VocoderTask(
        encoder=encoder, generator=arguments.pop("generator", generator()),
        discriminators={"mpd": MultiPeriodDiscriminator(periods=(2,), channel_mult=1 / 32)}, optimizer_g=SGD,
        optimizer_d=SGD, loss_mel=LogMel(22050, 1024, 256, 1024, 40, 0.0, None), 
        **{"loss_weights": weights, **arguments},
    )  # fmt: skip


def loader(items: list[dict[str, torch.Tensor]]) -> DataLoader:
    return DataLoader(items, batch_size=None)


def test_accumulation_equals_the_larger_batch(tmp_path):
    full = batch(4)
    halves = [{key: value[i : i + 2] for key, value in full.items()} for i in (0, 2)]
    ends = []
    for batches in ([full], halves):
        torch.manual_seed(0)
        task = AdapterTask(cleaner(), SGD, WEIGHTS)
        make_trainer(default_root_dir=tmp_path, max_steps=1, accumulate_grad_batches=len(batches)).fit(
            task, loader(batches)
        )
        ends.append(task.state_dict())
    torch.testing.assert_close(ends[1], ends[0], atol=1e-6, rtol=1e-5)


def test_the_encoder_of_a_vocoder_stays_as_it_is_through_fit_and_validation(tmp_path):
    task, modes = vocoder_task(cleaner()), []
    task.encoder.register_forward_pre_hook(lambda net, _: modes.append({each.training for each in net.modules()}))
    before = {name: tensor.clone() for name, tensor in task.encoder.state_dict().items()}
    items = [{**batch(2, 6400, i), "audio": torch.zeros(2, 8820)} for i in range(3)]
    val = [{"input": items[0]["input"][:1], "audio": 0.1 * torch.randn(1, 8820)}]
    trainer = make_trainer(default_root_dir=tmp_path, max_steps=3, val_check_interval=1)
    trainer.fit(task, loader(items), loader(val))
    assert len(modes) >= 3 + 3 and all(each == {False} for each in modes)
    for name, tensor in task.encoder.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_clean_items_of_a_mixed_batch_pass_the_adapters_by():
    task = vocoder_task(cleaner())
    data = batch(2, 3200)
    mixed = task.features({**data, "is_clean": torch.tensor([True, False])})
    plain = task.encoder.target(data["input"], data["lengths"]).transpose(1, 2)
    cleaned = task.encoder(data["input"], data["lengths"]).transpose(1, 2)
    torch.testing.assert_close(mixed, torch.stack([plain[0], cleaned[1]]))
    torch.testing.assert_close(task.features({**data, "is_clean": torch.tensor([True, True])}), plain)


def test_segments_are_cut_from_their_context():
    task = vocoder_task(backbone())
    data = batch(2, 3200)
    full = task.features(data)
    cut = task.features({**data, "first": torch.tensor([2, 0]), "frames": torch.tensor([4, 4])})
    torch.testing.assert_close(cut, torch.stack([full[0, :, 2:6], full[1, :, :4]]))


def test_wrong_arguments_are_refused():
    for match, make in (
        ("mae, mse, sc", lambda: AdapterTask(cleaner(), SGD, {"mae": 1.0})),
        ("22050 Hz need 441", lambda: vocoder_task(backbone(), generator=generator(last_rate=2))),
        ("least_squares", lambda: vocoder_task(backbone(), least_squares=1)),
        ("does not pad", lambda: vocoder_task(backbone(pad=False))),
        ("a hop that divides", lambda: BackboneTask(backbone(), LogMel(16000, 512, 128, 512, 20, 0.0, 8000.0), SGD)),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_a_backbone_learns_and_is_written_for_others(tmp_path):
    mel = LogMel(16000, 512, 160, 512, 20, 0.0, 8000.0)
    task = BackboneTask(backbone(layer=1), mel, partial(torch.optim.AdamW, lr=0.01))
    speech = [batch(2, seed=0)] * 30
    before = task.evaluate(batch(2), 0, "val")[0]["loss"].item()
    trainer = make_trainer(default_root_dir=tmp_path, max_steps=30, val_check_interval=30)
    trainer.fit(task, loader(speech), loader([batch(2)]))
    after = task.evaluate(batch(2), 0, "val")[0]["loss"].item()
    assert after < 0.7 * before
    again = Backbone(layer=1, source=str(tmp_path))
    x = batch(1)["clean"]
    np.testing.assert_allclose(again(x), task.eval().encoder(x).detach(), atol=1e-6)


def test_the_shortcut_is_solved_for_before_the_first_batch(tmp_path):
    def start():
        torch.manual_seed(0)
        return MagnitudeVocos(32, 480, 2, 960, 8, 12, 1, iterations=1)

    data = VocoderSegments(
        24000, segment_frames=8, context_frames=2, batch_size=3, split=SpeakerSplit(items=1, seconds=0.5),
        corpus=CorpusOptions(embedded_utterances=5),
    )  # fmt: skip
    frozen, mel = partial(torch.optim.SGD, lr=0.0), LogMel(24000, 1024, 256, 1024, 40, 0.0, None)
    arguments = {"discriminators": {}, "optimizer_g": frozen, "optimizer_d": frozen, "loss_mel": mel}
    arguments |= {"loss_weights": {"g/magnitude": 1.0}, "sample_rate": 24000}
    task = VocoderTask(backbone("mel_hubert"), start(), least_squares=2, **arguments)
    runs = {"max_steps": 1, "limit_val_batches": 0, "default_root_dir": tmp_path}
    make_trainer(**runs).fit(task, data)
    keys = [(epoch, item) for epoch in range(2) for item in range(len(data.train_set))]
    full = data.collate([data.train_set[key] for key in keys])
    expected = start()
    expected.fit_shortcut([(task.features(full), full["audio"])])
    torch.testing.assert_close(task.generator.mean, expected.mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(task.generator.shortcut.weight, expected.shortcut.weight, atol=1e-4, rtol=1e-3)
    assert expected.shortcut.weight.abs().max() > 0.01
    sharding = SingleDeviceStrategy("cpu")
    sharding.shards_weights = True
    task = VocoderTask(backbone("mel_hubert"), start(), least_squares=2, **arguments)
    with pytest.raises(ValueError, match="shards the weights"):
        make_trainer(strategy=sharding, **runs).fit(task, data)
    for rate, frame_rate, message in ((24000, 25, "frames of .640, 960."), (16000, 50, "data.sample_rate is 16000")):
        with pytest.raises(ValueError, match=message):
            make_trainer(**runs).fit(task, VocoderSegments(rate, frame_rate=frame_rate))
