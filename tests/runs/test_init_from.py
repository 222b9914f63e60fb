import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn
from toy_system.backbone import Scale, Scaled
from toy_system.nets import Gain
from toy_system.task import GainTask

from tests.harness import TOY_ARGS, TOY_RECIPE
from zoo.cli.main import main
from zoo.runs import frozen
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.init_from import init_from
from zoo.runs.load import load
from zoo.runs.model_description import FORMAT

LIGHTNING = "pytorch-lightning_version"


class Task(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)


def checkpoint(path: Path, state: dict[str, torch.Tensor]) -> Path:
    save_checkpoint({"state_dict": state, LIGHTNING: "2"}, path)
    return path


def test_reports_by_component_and_copies(tmp_path: Path) -> None:
    options, task = Task(), Task()
    state = {key: value for key, value in options.state_dict().items() if key.startswith("net")}
    report = init_from(task, checkpoint(tmp_path / "a.ckpt", {**state, "extra.x": torch.zeros(1)}), 0.9)
    assert torch.equal(task.net.weight, options.net.weight)
    assert report["net"] == {"matched": 2}
    assert report["head"] == {"missing": 2}
    assert report["extra"] == {"unexpected": 1}


def test_too_few_matches_are_refused(tmp_path: Path) -> None:
    half = checkpoint(tmp_path / "half.ckpt", Task().state_dict() | {"net.weight": torch.zeros(3, 3)})
    strange = checkpoint(tmp_path / "strange.ckpt", {"other.x": torch.zeros(1)})
    (tmp_path / "empty").mkdir()
    for path, error, message in (
        (half, ValueError, "only 1 of the net's tensors match"),
        (strange, ValueError, "no tensor matches"),
        (tmp_path / "absent.ckpt", FileNotFoundError, "nothing at"),
        (tmp_path / "empty", FileNotFoundError, "neither a run, nor an export"),
    ):
        with pytest.raises(error, match=message):
            init_from(GainTask(Gain(), torch.optim.Adam) if path.name == "empty" else Task(), path, 0.9)
    assert init_from(Task(), half, 0.5)["net"] == {"matched": 1, "mismatched": 1}


def test_several_files_add_up_and_later_ones_win(tmp_path: Path) -> None:
    first, second, task = Task(), Task(), Task()
    net = checkpoint(tmp_path / "a.ckpt", {k: v for k, v in first.state_dict().items() if k != "head.bias"})
    head = checkpoint(tmp_path / "b.ckpt", {k: v for k, v in second.state_dict().items() if k.startswith("head")})
    report = init_from(task, [net, head])
    assert report == {"net": {"matched": 2}, "head": {"matched": 2}}
    assert torch.equal(task.net.weight, first.net.weight)
    assert torch.equal(task.head.weight, second.head.weight)


def test_a_list_in_the_config_survives_the_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = []
    for name, gain in (("a", 0.5), ("b", 1.5)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"toy_gain": gain}))
        options.append(str(tmp_path / f"{name}.json"))
    run = tmp_path / "run"
    limits = ["--trainer.max_steps=1", "--model.init_args.optimizer.init_args.lr=0"]
    args = ["fit", "--config", str(TOY_RECIPE), *TOY_ARGS, *limits, f"--trainer.default_root_dir={run}"]
    assert main([*args, f"--init_from=[{', '.join(options)}]"]) == 0
    assert load(run, allow_import=["toy_system"]).net.gain == 1.5
    assert yaml.safe_load((run / "config.yaml").read_text())["init_from"] == options
    capsys.readouterr()
    for extra in ([], ["--init_from=x"]):
        assert main(["fit", "--config", str(run / "config.yaml"), *TOY_ARGS, *extra, "--print_config"]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["init_from"] == ("x" if extra else options)


class Alone(L.LightningModule):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(2, 1)


def test_frozen_weights_are_compared_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    options = Alone(Scaled(Scale(config={"seed": 1})))
    modules = frozen.frozen_modules({"": options})
    left_out = frozen.frozen_keys(modules)
    state = {key: value for key, value in options.state_dict().items() if key not in left_out}
    save_checkpoint({"state_dict": state, "frozen": frozen.frozen_records(modules), LIGHTNING: "2"}, path)
    task = Alone(Scaled(Scale(config={"seed": 1})))
    assert init_from(task, path) == {"encoder": {"matched": 1}, "head": {"matched": 2}}
    assert torch.equal(task.encoder.gain, options.encoder.gain)
    with pytest.raises(ValueError, match=r"belongs to encoder\.backbone = weights built here .* and not to"):
        init_from(Alone(Scaled(Scale(config={"seed": 2}))), path)
    # the same backbone without its adapter, at another place
    init_from(Alone(Scale(config={"seed": 1})), path)
    with pytest.raises(ValueError, match=r"set the source of encoder to the former"):
        init_from(Alone(Scale(config={"seed": 2})), path)


def test_weights_of_a_backbone_are_taken_only_where_it_has_no_source(tmp_path: Path) -> None:
    options = Alone(Scaled(Scale(config={"seed": 1}, trained=True)))
    path = checkpoint(tmp_path / "a.ckpt", options.state_dict())
    separate = Alone(Scaled(Scale(config={"seed": 2})))
    before = separate.encoder.backbone.fingerprint()
    assert init_from(separate, path) == {"encoder": {"matched": 3}, "head": {"matched": 2}}
    assert torch.equal(separate.encoder.backbone.weight, options.encoder.backbone.weight)
    assert separate.encoder.backbone.fingerprint() != before
    for seed in (1, 2):
        Scale(config={"seed": seed}).save_source(tmp_path)
        sourced = Alone(Scaled(Scale(source=str(tmp_path))))
        if seed == 1:
            assert init_from(sourced, path)["encoder"] == {"matched": 1}
        else:
            with pytest.raises(ValueError, match=r"its encoder\.backbone\.weight differs"):
                init_from(sourced, path)


def test_export_of_an_older_format_gives_its_weights(tmp_path: Path) -> None:
    source, task = Task(), Task()
    config = {"zoo": "0.2.0", "inference": "zoo.old.Name", "parts": {"net": {}}, "frozen": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    assert init_from(task, tmp_path) == {"net": {"matched": 2}, "head": {"matched": 2}}
    assert torch.equal(task.net.weight, source.net.weight)
    with pytest.raises(ValueError, match="--init_from"):
        load(tmp_path)


@pytest.mark.parametrize("is_export", [False, True])
def test_other_arguments_of_loaded_components_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_export: bool
) -> None:
    def components(scale: float) -> dict[str, Any]:
        part = {"class_path": "zoo.Part", "init_args": {"groups": int(scale), "dropout": scale}}
        net = {"class_path": "zoo.Net", "init_args": {"time_scale": scale, "size": 2, "part": part}}
        return {"net": net, "path": {"class_path": "zoo.Path", "init_args": {"sigma_min": scale}}}  # no weights

    source, task = Task(), Task()
    task.specs = {"components": components(1000.0)}
    path = tmp_path / "a.ckpt"
    if is_export:
        path = tmp_path
        config = {"zoo": "1", "inference": "zoo.Name", "components": components(1.0)}
        (path / "config.json").write_text(json.dumps(config))
        save_file(source.state_dict(), path / "model.safetensors")
    else:
        saved = {"format": FORMAT, "components": components(1.0)}
        save_checkpoint({"state_dict": source.state_dict(), LIGHTNING: "2", "zoo": saved}, path)
    init_from(task, path)
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "time_scale 1000.0 (1.0 " in message
    assert "part.groups 1000 (1 " in message
    assert not any(name in message for name in ("size", "dropout", "sigma_min"))
