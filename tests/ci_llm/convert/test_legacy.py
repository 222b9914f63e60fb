"""Old calls in our words: what comes out is a command of ours and a recipe that it trains."""

from pathlib import Path

import pytest
import yaml

from tests.ci_llm.crowd_parts import CONFIGS
from tests.harness import good, zoo
from zoo.ci_llm.convert.legacy import command, translate
from zoo.ci_llm.convert.read import adapters_of
from zoo.ci_llm.convert.write import write_original
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.runs.checkpoints import load_checkpoint

ALONE = ["--trainer.devices=1", "--trainer.num_nodes=1"]
FOUR = {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}


def config(folder: Path, **changes: object) -> Path:
    """The original's file."""
    path = folder / "configs.yaml"
    values = {"model_name": "google/gemma-2-2b", "num_agents": 4, "epochs": 3, "lr": "3e-5", "output_dir": "named"}
    path.write_text(yaml.safe_dump({**values, "gradient_accumulation_steps": 8, **changes}))
    return path


def test_a_call(tmp_path: Path) -> None:
    path = config(tmp_path, eval_batch_size=2)
    call = translate(["--config", str(path), "--loggers=[wandb]"], {})
    recipe = tmp_path / "configs.zoo.yaml"
    assert call.command[:3] == ["fit", "--config", str(recipe)]
    assert call.command[3:] == [*ALONE, "--trainer.default_root_dir=named", "--loggers=[wandb]"]
    assert call.notes == ["not translated: eval_batch_size: an option of zoo evaluate ci_llm"]
    written = yaml.safe_load(recipe.read_text())
    assert written["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]["count"] == 4


def test_the_file_that_is_read_when_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path, output_dir=None)
    monkeypatch.chdir(tmp_path)
    expected = ["fit", "--config", "configs.zoo.yaml", *ALONE, "--trainer.default_root_dir=ci_llm_output"]
    assert translate([], {}).command == expected


def test_a_launcher(tmp_path: Path) -> None:
    path = config(tmp_path, num_warmup_steps_ratio=0.03)
    call = translate([f"--config={path}", "--config", "mine.yaml"], FOUR)
    configs = [
        Path(part).name for before, part in zip(call.command, call.command[1:], strict=False) if before == "--config"
    ]
    assert configs == ["configs.zoo.yaml", "ddp.yaml", "mine.yaml"]
    assert "--trainer.devices=4" in call.command
    recipe = yaml.safe_load((tmp_path / "configs.zoo.yaml").read_text())
    assert recipe["trainer"]["max_steps"] == 702  # 2805 on one device
    assert recipe["model"]["init_args"]["scheduler"]["init_args"]["warmup_steps"] == 21
    translate([f"--config={config(tmp_path, max_train_steps=200)}"], FOUR)
    assert yaml.safe_load((tmp_path / "configs.zoo.yaml").read_text())["trainer"]["max_steps"] == 200


def test_on_a_cpu(tmp_path: Path) -> None:
    call = translate([f"--config={config(tmp_path, mixed_precision='fp16')}"], {"ACCELERATE_USE_CPU": "true"})
    assert "--trainer.accelerator=cpu" in call.command
    assert yaml.safe_load((tmp_path / "configs.zoo.yaml").read_text())["trainer"]["precision"] == "32-true"


def test_going_on(tmp_path: Path) -> None:
    path = config(tmp_path, resume_from_checkpoint=str(tmp_path / "run"))
    run = tmp_path / "run"
    run.mkdir()
    crowd = Crowd(Backbone(config=CONFIGS["llama"]), Agents(2, rank=2))
    for step in (1, 2):
        write_original(run / f"checkpoint_step_{step}", adapters_of(crowd, {"global_step": step}))
    (run / "step_00000002.ckpt").touch()

    def start(*arguments: str) -> list[str]:
        return translate([f"--config={path}", *arguments], {}).command[5:]

    assert start() == [f"--ckpt_path={run}"]  # the key
    of_step = str(run / "checkpoint_step_2")
    assert start("--resume_from_checkpoint", of_step) == [f"--ckpt_path={run / 'step_00000002.ckpt'}"]
    assert start(f"--resume_from_checkpoint={run / 'step_00000002.ckpt'}")[0].endswith("00000002.ckpt")
    foreign = translate([f"--config={path}", f"--resume_from_checkpoint={run / 'checkpoint_step_1'}"], {})
    assert foreign.command[-1] == f"--init_from={run / 'checkpoint_step_1'}"
    assert "--trainer.default_root_dir=named" in foreign.command
    assert "its adapters are taken" in foreign.notes[-1]
    with pytest.raises(FileNotFoundError, match="nothing at nowhere"):
        start("--resume_from_checkpoint=nowhere")


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "no configuration at"), ("a: 1", "no configuration of CI-LLM")],
)
def test_a_faulty_call_ends_with_one_line(
    text: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "configs.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        command([f"--config={path}"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and told in said and len(said.splitlines()) == 1


@pytest.mark.slow
def test_the_recipe_trains_and_goes_on(tmp_path: Path) -> None:
    backbone = Backbone(config={**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": 128})
    backbone.save_source(tmp_path / "tiny")
    ByteTokenizer().save(tmp_path / "tiny")
    texts = tmp_path / "data" / "sums"
    texts.mkdir(parents=True)
    texts.joinpath("train.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 72)
    path = config(
        tmp_path, model_name="./tiny", num_agents=2, lora_rank=2, dataset_name="sums", max_train_steps=2,
        gradient_accumulation_steps=1, max_seq_length=64, num_workers=0, save_steps=1, logging_steps=1,
        initialize_adapters_rand=True,
    )  # fmt: skip
    small = ["--trainer.accelerator=cpu", "--model.init_args.crowd.init_args.backbone.init_args.quantization=none"]
    call = translate([f"--config={path}", *small], {})
    good(zoo(*call.command, cwd=tmp_path))
    assert load_checkpoint(tmp_path / "named" / "step_00000002.ckpt")["global_step"] == 2
    again = translate([f"--config={path}", f"--resume_from_checkpoint={tmp_path / 'named'}", *small], {})
    good(zoo(*again.command, "--trainer.max_steps=3", cwd=tmp_path))
    assert (tmp_path / "named" / "step_00000003.ckpt").is_file()
