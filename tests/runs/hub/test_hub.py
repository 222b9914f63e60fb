"""Pushing runs of all systems to a hub and loading them; errors of a hub are one line."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, constants

from tests.harness import environment, error_line
from tests.runs.hub.hub_server import TOKEN, Hub
from zoo.cli.main import main
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.hub.models import HubName, is_hub_name, parse_hub_name, redact
from zoo.runs.load import load

ONE_STEP = ("--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0")
SYSTEMS = ("flow/smoke", "ci_llm/smoke")
SLOW = ("compressed_ad/smoke", "hifigan/smoke", "audiosr/smoke", "miipher/smoke_adapter")


def fit(recipe: str, folder: Path, *more: str) -> Path:
    assert main(["fit", recipe, *ONE_STEP, f"--trainer.default_root_dir={folder}", *more]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = ("--trainer.max_steps=2", "--trainer.val_check_interval=1", "--trainer.log_every_n_steps=1")
    folder = fit("flow/smoke", tmp_path_factory.mktemp("run") / "digits", *steps)
    evaluation = folder.parent / "evaluation"
    evaluation.mkdir()
    rows = "system,figure,value,low,high\ngenerated,frechet,1.5,1.25,1.75\ngenerated,recall,0.5,,\n"
    (evaluation / "evaluation.csv").write_text(rows)
    return folder


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """What HF_ENDPOINT, HF_HUB_CACHE, HF_HUB_DISABLE_XET and HF_HUB_OFFLINE do when a process begins."""
    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_URL_HOSTS", frozenset({"127.0.0.1"}), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    yield hub
    hub.hold.clear()
    hub.shutdown()
    hub.server_close()


@pytest.mark.parametrize("recipe", [*SYSTEMS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_push_and_load_are_equal(recipe: str, online: Hub, tmp_path: Path) -> None:
    folder = fit(recipe, tmp_path / "run", "--trainer.val_check_interval=1")
    assert main(["push", str(folder), "me/model"]) == 0
    local, pushed = load(folder), load("hf://me/model")
    assert type(local) is type(pushed)
    for name, part in load(tmp_path / "run").modules().items():
        if hasattr(part, "remove_weight_norm_"):
            part.remove_weight_norm_()  # type: ignore[operator]
        expected, state = part.state_dict(), pushed.modules()[name].state_dict()
        assert expected.keys() == state.keys()
        assert all(torch.equal(expected[key], state[key]) for key in expected)
    assert pushed.dry_run()
    begun = fit(recipe, tmp_path / "begun", "--init_from=hf://me/model", "--init_from_min_matched=0.5")
    commit = online.repos["me/model"].branches["main"]
    assert yaml.safe_load((begun / "config.yaml").read_text())["init_from"] == f"hf://me/model@{commit}"


def test_card_describes_the_run(run: Path, online: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = str(run.parent / "evaluation")
    args = ["push", str(run), "me/digits", "--license", "cc0-1.0", "--evaluation", evaluation]
    assert main([*args, "--message", "first"]) == 0
    files, commits = online.files("me/digits"), online.repos["me/digits"].commits
    card = ModelCard(files["README.md"].decode())
    facts = card.data.to_dict()
    assert [facts[name] for name in ("library_name", "license", "pipeline_tag")] == [
        "zoo", "cc0-1.0", "unconditional-image-generation",
    ]  # fmt: skip
    assert "| generated | frechet | 1.5 | 1.25 | 1.75 |" in card.text
    assert 'zoo.load("hf://me/digits")' in card.text and "flow/smoke" in card.text
    assert "![val_samples](samples/val_samples.png)" in card.text
    assert files["samples/val_samples.png"] == max(run.glob("media/step_*/val_samples.png")).read_bytes()
    text = b"".join(content for path, content in files.items() if not path.endswith((".png", ".gif", ".safetensors")))
    assert str(run).encode() not in text and TOKEN.encode() not in b"".join(files.values())
    assert online.repos["me/digits"].messages[-1] == "first" and len(commits) == 2

    assert main(args) == 0  # the same again
    assert len(commits) == 2 and "nothing new" in capsys.readouterr().out
    sent = list(online.bodies)
    mine = {"LICENSE": b"mine", "peft/adapter_model.safetensors": b"mine"}
    online.put("me/digits", {**files, "samples/old.png": b"old", **mine})
    assert main([*args, "--license", "mit"]) == 0
    after = online.files("me/digits")
    assert after.keys() == {*files, *mine} and online.bodies == sent
    assert {path for path in files if files[path] != after[path]} == {"README.md"}


def test_card_has_the_last_values_until_the_checkpoint(run: Path, online: Hub, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))  # of two steps
    (folder / "metrics.csv").write_text("step,epoch,val/loss\n0,0,3.0\n1,0,2.0\n2,0,1.0\n")
    (folder / "validate.csv").write_text("step,epoch,val/loss,val/other\n1,0,7.0,5.0\n")
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(
        config.replace("    root: null\n", "    root: /corpora/jvs_ver1/wav24kHz16bit\n")
    )
    assert main(["push", str(folder), "me/digits"]) == 0
    text = online.files("me/digits")["README.md"].decode()
    assert "| val/loss | 2 |" in text and "| val/other | 5 |" in text
    assert "JVS: its own terms" in text and b"/corpora" not in online.files("me/digits")["training.yaml"]


def test_branches_private_models_and_names_in_tools(
    run: Path, online: Hub, tmp_path: Path, working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(run), "hf://me/mine", "--private", "--revision", "v2"]) == 0
    model = online.repos["me/mine"]
    assert model.private and len(model.commits[model.branches["main"]]) == 1  # what a hub puts there itself
    name = f"hf://me/mine@{model.branches['v2']}"
    assert name in capsys.readouterr().out
    assert main(["export", "hf://me/mine@v2", "exported"]) == 0
    assert (tmp_path / "exported" / "model.safetensors").read_bytes() == online.files("me/mine", "v2")[
        "model.safetensors"
    ]
    assert main(["inspect", name]) == 0
    source = load(name).write_example(tmp_path / "request")
    assert main(["predict", "--ckpt_path", name, "--input", str(source), "--output", "out"]) == 0
    assert (tmp_path / "out" / "request.png").is_file()
    request_count = len(online.requests)
    assert main(["inspect", name]) == 0 and len(online.requests) == request_count  # a commit does not change
    assert load(name)([1], seeds=[3]).shape == load(run)([1], seeds=[3]).shape
    capsys.readouterr()

    shutil.copytree(run, tmp_path / "runs/digits")
    earlier = {**load_checkpoint(run / "step_00000002.ckpt"), "global_step": 1}
    torch.save(earlier, tmp_path / "runs/digits/step_00000001.ckpt")
    assert main(["push", "digits/step_00000001.ckpt", "me/first"]) == 0  # below runs, not the newest
    assert "after 1 steps" in online.files("me/first")["README.md"].decode()

    online.put("me/open", {"config.json": b"{}"})
    for args, message in (
        (["push", str(run), "me/open", "--private"], "is public"),
        (["push", str(run), "me/mine@v2"], "--revision v2"),
        (["inspect", "hf://me/mine@v3"], "no such branch, tag or commit"),
        (["inspect", "hf://me/nothing"], "no such model"),
        (["fit", "--ckpt_path", "hf://me/mine"], "--init_from"),
    ):
        assert main(args) in (1, 2), args
        assert message in error_line(capsys.readouterr().err), args


def test_killed_upload_is_resumed(run: Path, online: Hub) -> None:
    assert main(["push", str(run), "me/whole"]) == 0
    online.contents = {key: value for key, value in online.contents.items() if key not in online.bodies[:1]}
    lost = online.bodies.pop(0)
    online.lfs.remove(lost)
    online.hold.set()
    command = [sys.executable, "-m", "zoo", "push", str(run), "me/killed"]
    settings = {"HF_ENDPOINT": online.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    process = subprocess.Popen(command, env=environment(**settings), stdout=subprocess.DEVNULL)
    assert online.held.wait(120)
    process.kill()
    process.wait()
    online.hold.clear()
    assert len(online.repos["me/killed"].commits) == 1  # nothing half of it is to be seen
    sent = list(online.bodies)
    assert main(["push", str(run), "me/killed"]) == 0
    assert online.bodies == [*sent, lost]  # what was there is not sent again
    complete, killed = online.files("me/whole"), online.files("me/killed")
    assert {path: content.replace(b"killed", b"whole") for path, content in killed.items()} == complete


def good_model(run: Path, online: Hub) -> dict[str, bytes]:
    assert main(["push", str(run), "me/good"]) == 0
    return {path: online.files("me/good")[path] for path in ("config.json", "model.safetensors", "README.md")}


def test_unsafe_models_are_refused(run: Path, online: Hub, tmp_path: Path) -> None:
    good = good_model(run, online)
    config = json.loads(good["config.json"])

    online.put("bad/beside", {**good, "pytorch_model.bin": b"pickle", "last.ckpt": b"pickle", "modeling.py": b"evil"})
    assert load("hf://bad/beside").dry_run()
    assert {path.name for path in (tmp_path / "cache" / "models--bad--beside" / "snapshots").rglob("*.*")} == {*good}

    record = {"class": "", "source": None, "revision": None, "folder": "../../../etc", "sha256": "0" * 64}
    refused = {
        "system": ({**config, "inference": "os.system"}, "os.system"),
        "local": ({**config, "options": {"source": "/etc"}}, "outside of the model"),
        "outside": ({**config, "frozen": {"net": record}}, "not in frozen/"),
        "other": ({"model_type": "llama"}, "another project's"),
    }
    for name, (bad, message) in refused.items():
        online.put(f"bad/{name}", {**good, "config.json": json.dumps(bad).encode()})
        with pytest.raises(ValueError, match=message):
            load(f"hf://bad/{name}")
        assert f"GET /bad/{name}/resolve/{online.repos[f'bad/{name}'].branches['main']}/model.safetensors" not in (
            online.requests
        )
    online.put("bad/pickle", {"config.json": good["config.json"], "pytorch_model.bin": b"pickle"})
    online.put("bad/path", {**good, "../../up.json": b"{}"})
    for name, message in (("pickle", "no model of the zoo"), ("path", "segment")):
        with pytest.raises(ValueError, match=message):
            load(f"hf://bad/{name}")


def test_errors_are_one_line_without_token(
    run: Path, online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good_model(run, online)
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    secret = "hf_AnotherSecretThatNobodyMaySee"
    output = ""

    def fails(*args: str) -> str:
        nonlocal output
        capfd.readouterr()
        assert main(list(args)) == 1
        captured = capfd.readouterr()
        output += captured.out + captured.err
        return next(line for line in captured.err.splitlines() if line.startswith("zoo: error:"))

    monkeypatch.setenv("HF_TOKEN", secret)
    assert "(401)" in fails("push", str(run), "me/new")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["inspect", "hf://me/good"]) == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["inspect", "hf://me/good"]) == 0  # as it was last seen
    assert "HF_HUB_OFFLINE" in fails("inspect", "hf://me/unseen")
    assert "HF_HUB_OFFLINE" in fails("push", str(run), "me/good")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:password@127.0.0.1:9")
    line = fails("inspect", "hf://me/good")
    assert "no answer from http://127.0.0.1:9" in line
    assert "no answer" in fails("push", str(run), "me/good")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "hf auth login" in fails("push", str(run), "me/good")
    assert {secret, f"Bearer {secret}"} & {str(each) for each in online.asked_by}  # it was really used
    assert TOKEN not in output and secret not in output and "password@" not in output.replace(line, "")


def test_names() -> None:
    assert parse_hub_name("hf://a/b") == parse_hub_name(Path("hf://a/b")) == HubName("a/b")
    assert parse_hub_name("hf://a/b.c-d@refs/pr/1") == HubName("a/b.c-d", "refs/pr/1")
    assert str(HubName("a/b", "v1")) == "hf://a/b@v1"
    assert is_hub_name(Path("hf://a/b")) and not is_hub_name("hf/a/b") and not is_hub_name("https://a/b")
    for wrong in ("hf://a", "hf://a/b/c", "hf://../b", "hf://a/b@", "hf://a/b@../x", "hf://a/b c"):
        with pytest.raises(ValueError, match="expected hf://"):
            parse_hub_name(wrong)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("postgresql://user:p@ss@host/db", "postgresql://host/db"),
        ("https://host/a@b.wav", "https://host/a@b.wav"),
        ("https://host/a.wav?signature=1@2", "https://host/a.wav"),
        ("https://user:p@host/a.wav?token=1", "https://host/a.wav"),
        ("http://host/a?b=1,http://user:p@host/c", "http://host/a,http://host/c"),
    ],
)
def test_passwords_and_signatures_of_addresses_are_left_out(text, safe):
    assert redact(text) == safe
