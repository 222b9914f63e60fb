"""The parser of configs: what it returns is what `zoo fit` parses, and its errors are those of `zoo fit`."""

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.harness import environment
from zoo.cli.config_worker import describe_arguments, parse
from zoo.cli.trainer import ZooCLI
from zoo.common.configs import dump_yaml, load_yaml
from zoo.common.systems import recipe_paths
from zoo.ui.processes.command import ConfigParser, ParsedConfig
from zoo.ui.tabs.config_edits import describe_key, flatten_values

HIFIGAN, FLOW = recipe_paths()["hifigan/smoke"], recipe_paths()["flow/smoke"]
EMA = {"class_path": "zoo.training.EMA", "init_args": {"modules": ["net"], "decay": 0.5}}
EDITS: list[tuple[Path, dict[str, Any]]] = [
    (HIFIGAN, {"data": {"init_args": {"sample_rate": 16000}}}),  # interpolations follow
    (HIFIGAN, {"model": {"init_args": {"optimizer_g": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}}}}),
    (HIFIGAN, {"wandb": {"project": "zoo"}, "loggers": ["tensorboard"]}),
    (FLOW, {"trainer": {"callbacks": [EMA]}}),
]


@pytest.mark.parametrize(("recipe", "changes"), EDITS)
def test_the_config_is_that_of_print_config(
    recipe: Path, changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "changes.yaml").write_text(dump_yaml(changes))
    parsed = parse([str(recipe)], changes)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        ZooCLI("fit", [f"--config={recipe}", f"--config={tmp_path / 'changes.yaml'}", "--print_config"])
    printed = load_yaml(capsys.readouterr().out)
    assert flatten_values(parsed["config"]) == flatten_values(printed | {"ckpt_path": None})
    assert load_yaml(parsed["text"]) == parsed["config"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data": {"init_args": {"batch_size": 0}}}, "data.init_args.batch_size"),
        ({"modle": {"x": 1}}, "modle"),
        ({"data": {"init_args": {"root": "${oc.env:HOME}"}}}, "HOME"),
    ],
)
def test_errors_name_the_key(changes: dict[str, Any], key: str) -> None:
    reply = parse([str(HIFIGAN)], changes)
    assert reply.keys() == {"error"} and key in reply["error"] and "\n" not in reply["error"]


def test_keys_are_described_with_type_and_choices() -> None:
    reply = parse([str(HIFIGAN)], {})
    values = flatten_values(reply["config"])

    def describe(key: str) -> dict[str, Any]:
        return describe_key(reply["arguments"], values, key)

    assert describe("data.init_args.batch_size")["type"] == "int"
    assert "clipping" in describe("model.init_args.step.clip_g")["help"]  # a field of a dataclass
    assert describe("model.init_args.loss_weights.g/mel")["help"]  # an entry of a dictionary
    assert describe("wandb.mode")["choices"] == ["online", "offline"]
    assert describe("no.such.key") == {} and describe("seed_everything")["help"]
    assert json.loads(json.dumps(reply)) == reply


def test_optional_literals_offer_null() -> None:
    class Example:
        def __init__(self, kind: Literal["a", "b"] | None = None, any_of: int | list[str] = 1) -> None: ...

    described = describe_arguments(Example)
    assert described["kind"]["choices"] == ["a", "b", None] and described["any_of"]["choices"] == []


def test_one_process_answers_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        parser = ConfigParser(environment(), tmp_path)
        try:
            await parser.start()
            first = await parser.parse([HIFIGAN], {"data": {"init_args": {"batch_size": 3}}})
            assert isinstance(first, ParsedConfig) and first.config["data"]["init_args"]["batch_size"] == 3
            with pytest.raises(ValueError, match="modle"):
                await parser.parse([HIFIGAN], {"modle": {}})
            cancelled = asyncio.create_task(parser.parse([FLOW], {}))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            second = await parser.parse([FLOW, recipe_paths()["trainer/cpu"]], {})
            assert second.config["model"]["class_path"] == "zoo.flow.FlowTask"
        finally:
            await parser.close()
        broken = ConfigParser(environment(), tmp_path, "no_such_module")
        with pytest.raises(ChildProcessError, match="no_such_module"):
            await broken.parse([HIFIGAN], {})

    asyncio.run(main())
