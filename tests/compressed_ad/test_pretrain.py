from functools import partial
from pathlib import Path

import pytest
import torch

from tests.compressed_ad.parts import DIM, policy
from tests.training.callbacks.parts import make_trainer
from zoo.compressed_ad import Darkroom, DistillationTask, EpsilonCurriculum, InContextPolicy, PretrainTask
from zoo.compressed_ad.data.curriculum import Curriculum
from zoo.compressed_ad.data.datamodule import EvaluationOptions, HistoryData
from zoo.compressed_ad.data.windows import WindowOptions
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import FieldDecoder, ReconstructionDecoder
from zoo.compressed_ad.nets.heads import cross_entropy
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.init_from import init_from

ENV = Darkroom(3, 4)
ADAM = partial(torch.optim.Adam, lr=1e-2)
DECODERS = {
    "tokens": lambda n: ReconstructionDecoder(DIM, 1, 2, dropout=0.0, max_tokens=n),
    "fields": lambda n: FieldDecoder(DIM, 3, positions=4, heads=2, dropout=0.0, max_tokens=n),
}


def build_policy(decoder: str = "tokens", arrangement: str = "fused", max_tokens: int = 16) -> InContextPolicy:
    return policy(4, 3, 10, arrangement=arrangement, decoder=DECODERS[decoder](max_tokens))


def build(policy: InContextPolicy, **kwargs: object) -> PretrainTask:
    task = PretrainTask(policy, ENV, ADAM, **kwargs)
    task.log_terms = lambda *args, **kwargs: None
    return task


def test_what_trains_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr("zoo.compressed_ad.task.compile_module", compiled.append)
    build(net := build_policy(), compile=True).on_fit_start()
    assert compiled == [net.compressor, net.decoder]


def make(length: int = 9) -> HistoryData:
    data = HistoryData(
        ENV,
        demonstrator=EpsilonCurriculum(ENV, 6),
        length=length,
        windows=WindowOptions("random"),
        batch_size=8,
        epoch_items=80,
        evaluation=EvaluationOptions(seeds=0),
    )
    data.setup("fit")
    return data


def test_the_data_fit_the_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fit(task: PretrainTask | DistillationTask, **options: object) -> None:
        data = HistoryData(ENV, demonstrator=EpsilonCurriculum(ENV, 6), batch_size=4, **options)
        make_trainer(max_steps=0, default_root_dir=tmp_path).fit(task, data)

    with pytest.raises(ValueError, match="seeds to 0"):
        fit(build(build_policy()))
    with pytest.raises(ValueError, match="a window of 12 and 4 latents, the policy has 10 and 4"):
        fit(DistillationTask(build_policy(), ENV, ADAM), curriculum=Curriculum(12, 4, [0], [0], [[1.0]]))
    fit(DistillationTask(build_policy(), ENV, ADAM), length=9)
    assert "never compresses: items have at most 9 steps, and 9 fill" in caplog.text


@pytest.mark.parametrize("arrangement", ["fused", "separate"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_compressor_decoder_and_embedding_train_alone(decoder: str, arrangement: str) -> None:
    task = build(build_policy(decoder, arrangement))
    task.training_step(next(iter(make().train_dataloader())), 0).backward()
    trained = {name: each for name, each in task.policy.named_parameters() if each.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"compressor", "decoder", "embedding"}
    assert all(name.startswith("embedding.context.") for name in trained if name.startswith("embedding"))
    assert all(parameter.grad is not None for parameter in trained.values())  # DDP waits for each


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_exceeds_the_window_is_compressed_again_and_again(decoder: str) -> None:
    """A window of 10 with 4 latents: 9 transitions, then 5, then the 3 that are left."""
    task, steps = build(build_policy(decoder, max_tokens=32), reward_weight=3.0).eval(), make(17).train_set[0]["steps"]
    net, latents, losses = task.policy, None, []
    assert task.reconstructed_lengths(17) == ([9, 14, 17] if decoder == "fields" else [9, 5, 3])
    for start, end in ((0, 9), (9, 14), (14, 17)):
        compression = net.compress(latents, steps.slice(start, end))
        latents = compression.latents
        if decoder == "tokens":
            losses.append(reconstruction_loss(net, compression, 3.0))
            continue
        newest = compression.tokens.shape[1] - 1
        positions = torch.tensor([(newest - age) % 32 for age in reversed(range(end))])
        target = steps.slice(0, end)
        pairs = zip(net.decoder.field_logits(latents, positions), net.decoder.field_values(target), strict=True)
        errors = torch.stack([cross_entropy(*pair) for pair in pairs]).mean(0)
        losses.append((errors * (1 + 2 * target.rewards)).mean())
    torch.testing.assert_close(task.evaluate({"steps": steps}, 0, "val")[0]["loss"], torch.stack(losses).mean())


def test_distillation_begins_with_it(tmp_path: Path) -> None:
    pretrained = build(build_policy())
    with torch.no_grad():
        for parameter in pretrained.parameters():
            parameter.add_(1)
    path = tmp_path / "step_00000001.ckpt"
    save_checkpoint({"state_dict": pretrained.state_dict()}, path)
    task = DistillationTask(build_policy(), ENV, ADAM, recon_weight=0.5)
    assert set(init_from(task, path)["policy"]) == {"matched"}
    for part in ("compressor", "decoder", "embedding.context"):
        actual, reference = (each.policy.get_submodule(part).state_dict() for each in (task, pretrained))
        assert all(torch.equal(actual[key], reference[key]) for key in reference)
    assert all(parameter.requires_grad for parameter in task.parameters())
