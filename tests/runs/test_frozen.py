"""Weights from elsewhere: left out of checkpoints, known by their hash, copied where the hub does not have them."""

import shutil
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from toy_system.backbone import FrozenTask, Scale, Scaled
from toy_system.data import PairData

import zoo
from tests.harness import TOY_ARGS, TOY_RECIPE, newest
from tests.training.callbacks.parts import make_trainer
from zoo.audio.io import files
from zoo.cli.main import main
from zoo.runs import frozen, pretrained_files
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.load import load
from zoo.runs.model_description import describe_model, validate_records
from zoo.training.callbacks.checkpoint_contents import CheckpointContents
from zoo.training.callbacks.ema import EMA

PART = "--model.init_args.net.init_args.backbone.init_args"
HERE = {"config": {"seed": 3}}


def recipe(folder: Path, **backbone: object) -> Path:
    spec = {"class_path": "toy_system.Scale", "init_args": backbone}
    model = {
        "net": {"class_path": "toy_system.Scaled", "init_args": {"backbone": spec}},
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
    }
    content = yaml.safe_load(TOY_RECIPE.read_text())
    content["trainer"] |= {"max_steps": 4, "val_check_interval": 2}
    content["checkpoints"] = {"every_n_steps": 2}
    content["model"] = {"class_path": "toy_system.FrozenTask", "init_args": model}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def fit(folder: Path, *options: str, **backbone: object) -> Path:
    run = folder / "run"
    where = ["--config", str(recipe(folder, **backbone)), f"--trainer.default_root_dir={run}"]
    assert main(["fit", *where, *TOY_ARGS, *options]) == 0
    return run


def source(folder: Path, seed: int = 5) -> str:
    folder.mkdir()
    Scale(config={"seed": seed}).save_source(folder)
    return str(folder)


def loaded(path: Path, **options: object) -> np.ndarray:
    return load(path, allow_import=["toy_system"], **options)(np.ones(3, np.float32), 16000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four batches on random weights built in it."""
    return fit(tmp_path_factory.mktemp("trained"), **HERE)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def other_draw(seed: int) -> torch.Tensor:
    return torch.full((8,), 2.0 + seed)


def test_fingerprint_covers_names_and_values() -> None:
    one, same, other = Scale(**HERE), Scale(**HERE), Scale(config={"seed": 4})
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    half = Scale(**HERE)
    half.weight.data = half.weight.data.half()
    assert half.fingerprint() != one.fingerprint()


def test_strict_loading_passes_without_the_frozen_tensors() -> None:
    net, other = Scaled(Scale(**HERE)), Scaled(Scale(config={"seed": 4}))
    before = net.backbone.fingerprint()
    net.load_state_dict({"gain": torch.tensor(2.0)})
    assert net.gain == 2 and net.backbone.fingerprint() == before
    net.load_state_dict(other.state_dict())
    assert net.backbone.fingerprint() == other.backbone.fingerprint() != before
    with pytest.raises(RuntimeError, match="gain"):
        net.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"backbone\.weight"):
        Scaled(Scale(**HERE, trained=True)).load_state_dict({"gain": torch.tensor(2.0)})


def test_checkpoint_holds_a_record_instead(trained: Path) -> None:
    checkpoint = load_checkpoint(newest(trained))
    sha = Scale(**HERE).fingerprint()
    folder = f"frozen/{sha[:16]}"
    assert list(checkpoint["state_dict"]) == ["net.gain"]
    assert checkpoint["frozen"] == {"net.backbone": dict(sha256=sha, source=None, revision=None, folder=folder)}
    assert [path.name for path in (trained / folder).iterdir()] == ["scale.safetensors"]
    assert len(list((trained / "frozen").iterdir())) == 1


def test_stays_in_evaluation_mode_through_fit_and_validation(tmp_path: Path) -> None:
    class Modes(L.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[bool, bool]] = []

        def on_train_batch_start(self, trainer: L.Trainer, task: FrozenTask, *args: object) -> None:
            self.seen.append((task.net.training, task.net.backbone.drop.training))

    for trained in (False, True):
        task = FrozenTask(Scaled(Scale(**HERE, trained=trained)), torch.optim.Adam)
        modes, ema = Modes(), EMA(["net"])
        settings = {"max_steps": 6, "val_check_interval": 2, "default_root_dir": tmp_path}
        trainer = make_trainer(modes, ema, CheckpointContents(), **settings)
        trainer.fit(task, PairData())
        task.train()
        assert modes.seen == [(True, trained)] * 6
        assert "net.gain" in ema.shadow and ("net.backbone.weight" in ema.shadow) == trained
        assert task.net.backbone.seen == (6 if trained else 0)
    assert list(tmp_path.iterdir()) == []  # no checkpoint was asked for, so no copy either


def test_trained_backbone_is_saved_like_any_net(tmp_path: Path) -> None:
    run = fit(tmp_path, **HERE, trained=True)
    checkpoint = load_checkpoint(newest(run))
    assert "frozen" not in checkpoint
    assert set(checkpoint["state_dict"]) == {"net.gain", "net.backbone.weight", "net.backbone.seen"}
    assert not (run / "frozen").exists()
    assert np.isfinite(loaded(run)).all()


def test_resume_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    option = "--trainer.precision=bf16-true"
    complete = fit(tmp_path, option, **HERE)
    (tmp_path / "b").mkdir()
    parts = fit(tmp_path / "b", option, "--trainer.max_steps=2", **HERE)
    written = (parts / "config.yaml").read_text()
    assert main(["fit", "--ckpt_path", str(parts), *TOY_ARGS, "--trainer.max_steps=4"]) == 0
    assert (parts / "config.yaml").read_text() == written.replace("max_steps: 2", "max_steps: 4")
    results, expected = load_checkpoint(newest(parts)), load_checkpoint(newest(complete))
    assert torch.equal(results["state_dict"]["net.gain"], expected["state_dict"]["net.gain"])
    assert results["frozen"] == expected["frozen"]
    assert results["frozen"]["net.backbone"]["sha256"] == Scale(**HERE).fingerprint()  # of the weights as they came


def test_vanished_source_comes_from_the_runs_copy(tmp_path: Path) -> None:
    folder = source(tmp_path / "source")
    run = fit(tmp_path, source=folder)
    assert load_checkpoint(newest(run))["frozen"]["net.backbone"]["source"] == folder
    second = source(tmp_path / "second")  # another place with the same weights is accepted
    args = ["--ckpt_path", str(shutil.copytree(run, tmp_path / "copy")), *TOY_ARGS, "--trainer.max_steps=5"]
    assert main(["fit", *args, f"{PART}.source={second}"]) == 0
    assert load_checkpoint(newest(tmp_path / "copy"))["frozen"]["net.backbone"]["source"] == second
    shutil.rmtree(folder)
    run = run.rename(tmp_path / "moved")
    expected, before = loaded(run), load_checkpoint(newest(run))
    files.write(tmp_path / "in.wav", np.full(50, 0.01, np.float32), 16000)
    paths = ["--input", str(tmp_path / "in.wav"), "--output", str(tmp_path / "out")]
    assert main(["predict", "--ckpt_path", str(run), *paths, *TOY_ARGS]) == 0
    np.testing.assert_allclose(files.read(tmp_path / "out" / "in.wav")[0], 0.01 * expected[0], atol=1e-4)
    assert main(["fit", "--ckpt_path", str(run), *TOY_ARGS, "--trainer.max_steps=6"]) == 0
    after = load_checkpoint(newest(run))
    assert after["frozen"] == before["frozen"] and after["zoo"] == before["zoo"] and after["global_step"] == 6


def test_older_checkpoint_takes_its_copy_into_the_new_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = loaded(run)
    monkeypatch.setattr("toy_system.backbone.draw", other_draw)  # as another version of torch might
    np.testing.assert_array_equal(loaded(run), expected)
    older, new = run / "step_00000002.ckpt", tmp_path / "new"
    where = ["--ckpt_path", str(older), f"--trainer.default_root_dir={new}", "--trainer.max_steps=3"]
    assert main(["fit", *where, *TOY_ARGS]) == 0
    shutil.rmtree(run)
    assert np.isfinite(loaded(new)).all()


def test_another_backbone_is_refused_and_both_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = source(tmp_path / "other")
    config = ["--config", str(run / "config.yaml"), "--config", str(recipe(tmp_path, source=other, config=None))]
    assert main(["fit", *config, "--ckpt_path", str(run), *TOY_ARGS]) == 1
    message = capsys.readouterr().err
    actual, reference = Scale(**HERE).fingerprint()[:16], Scale(source=other).fingerprint()[:16]
    assert all(word in message for word in ("net.backbone", "built here", actual, other, reference))
    assert len(list((run / "frozen").iterdir())) == 1
    monkeypatch.setattr("toy_system.backbone.draw", other_draw)
    shutil.rmtree(run / "frozen")
    with pytest.raises(ValueError, match=actual):
        loaded(run)
    assert main(["predict", "--ckpt_path", str(run), *TOY_ARGS, "--input", other, "--output", str(tmp_path / "o")]) == 1


def test_a_trainer_of_build_refuses_another_backbone(run: Path, tmp_path: Path) -> None:
    other = recipe(tmp_path, source=source(tmp_path / "other"), config=None)
    task, data, trainer = zoo.build(str(other), [f"trainer.default_root_dir={tmp_path / 'new'}"], ["toy_system"])
    with pytest.raises(ValueError, match=r"the checkpoint belongs to net\.backbone = weights built here"):
        trainer.fit(task, data, ckpt_path=str(run / "step_00000002.ckpt"), weights_only=True)


def test_what_would_lose_trained_weights_is_refused(tmp_path: Path) -> None:
    task = FrozenTask(Scaled(Scale(**HERE)), torch.optim.Adam)
    settings = {"max_steps": 1, "default_root_dir": tmp_path}
    callbacks = ModelCheckpoint(tmp_path, save_weights_only=True), CheckpointContents()
    with pytest.raises(ValueError, match="save_weights_only"):
        make_trainer(*callbacks, enable_checkpointing=True, **settings).fit(task, PairData())
    task.net.backbone.frozen_state = task.net.backbone.state_dict
    task.net.backbone.weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"net\.backbone\.weight is trained"):
        make_trainer(CheckpointContents(), **settings).fit(task, PairData())


def test_export_is_self_contained(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loaded(run)
    assert main(["export", str(run), str(tmp_path / "first"), *TOY_ARGS]) == 0
    monkeypatch.setattr("toy_system.backbone.draw", other_draw)
    shutil.rmtree(run)
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    np.testing.assert_array_equal(loaded(moved), expected)
    with pytest.raises(ValueError, match="has no option chunk"):
        loaded(moved, chunk=None)
    described = (moved / "config.json").read_text()
    assert str(tmp_path) not in described and '"source": "frozen/' in described
    weights = (moved / "model.safetensors").read_bytes()
    assert b"net.gain" in weights and b"backbone" not in weights
    assert main(["inspect", str(moved), *TOY_ARGS]) == 0
    files.write(tmp_path / "in.wav", np.full(50, 0.01, np.float32), 16000)
    args = ["--ckpt_path", str(moved), "--input", str(tmp_path / "in.wav"), "--output", str(tmp_path / "out")]
    assert main(["predict", *args, *TOY_ARGS, "--model.offset=0.25"]) == 0
    results = files.read(tmp_path / "out" / "in.wav")[0]
    np.testing.assert_allclose(results, 0.01 * expected[0] + 0.25, atol=1e-4)


def test_hub_weights_are_neither_copied_nor_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scale, "is_local", False)
    run = fit(tmp_path, **HERE)
    assert load_checkpoint(newest(run))["frozen"]["net.backbone"]["folder"] is None
    assert main(["export", str(run), str(tmp_path / "export"), *TOY_ARGS]) == 0
    assert not (run / "frozen").exists() and not (tmp_path / "export" / "frozen").exists()
    np.testing.assert_array_equal(loaded(tmp_path / "export"), loaded(run))


def test_one_module_under_two_names_is_left_out_under_both() -> None:
    class Twice(nn.Module):
        def __init__(self, backbone: Scale) -> None:
            super().__init__()
            self.first = self.second = backbone

    modules = frozen.frozen_modules({"part": Twice(Scale(**HERE))})
    assert list(modules) == ["part.first", "part.second"]
    assert frozen.frozen_keys(modules) == {f"part.{a}.{b}" for a in ("first", "second") for b in ("weight", "seen")}


def test_where_a_file_holds_its_tensors_does_not_matter(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=6, n_layer=1, n_head=2)).eval()
    model.save_pretrained(tmp_path)
    loaded = pretrained_files.load_pretrained(GPT2LMHeadModel, str(tmp_path), None, dtype=torch.float32)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in (*loaded.parameters(), *loaded.buffers()))
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    tokens = torch.tensor([[1, 7, 3]])
    with torch.inference_mode():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("place", ["..", "/etc", "frozen/../..", "frozen/0123456789abcdef/.."])
def test_a_copy_lies_in_the_run(place: str) -> None:
    with pytest.raises(ValueError, match=r"not in frozen/"):
        validate_records({"net": {"sha256": "0" * 64, "source": None, "revision": None, "folder": place}})


def test_mappings_that_an_export_would_change_are_refused() -> None:
    with pytest.raises(ValueError, match=r"net\.init_args\.table: .* 1$"):
        describe_model(None, {"net": {"class_path": "mine.Net", "init_args": {"table": {1: 2.5}}}})
