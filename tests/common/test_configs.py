from pathlib import Path

import pytest
import yaml
from omegaconf.basecontainer import BaseContainer

from tests.harness import REPOSITORY
from zoo.common import foreign_files
from zoo.common.configs import check_config_paths, load_run_config, load_yaml, restrict_resolvers
from zoo.common.foreign_files import load_json, read_lines


def test_one_resolver_remains() -> None:
    restrict_resolvers()
    assert set(BaseContainer._resolvers) == {"oc.env"}


def write_config(tmp_path: Path, **content: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_variables_of_the_zoo_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_X", "there")
    config = write_config(tmp_path, a="${oc.env:ZOO_X}", b="${oc.env:ZOO_Y,else}", c="${a}", d="${oc.env:ZOO_Y,null}")
    assert load_run_config(config) == {"a": "there", "b": "else", "c": "there", "d": None}


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}",
        "${ oc.env:HOME }",
        "${oc.env:${name}}",
        "${oc.env:'HOME'}",
        "${oc.decode:${oc.env:ZOO_X,HOME}}",
        "${oc.env:ZOO_ABSENT}",
        "${",
    ],
)
def test_nothing_else_is_resolved(text: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, name="HOME", value=text, x={"a": 1})
    with pytest.raises(ValueError) as error:
        load_run_config(config)
    assert "\n" not in str(error.value) and str(config) in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": {"callbacks": [{"class_path": "x", "init_args": {"dirpath": "/etc"}}]}},
        {"trainer": {"callbacks": [{"class_path": "x", "init_args": {"dirpath": "here"}}]}},
        {"trainer": {"callbacks": [{"class_path": "x", "init_args": {"filename": "../../up"}}]}},
        {"trainer": {"logger": {"init_args": {"save_dir": "~/x"}}}},
        {"trainer": {"logger": {"init_args": {"tracking_uri": "http://example.invalid"}}}},
        {"trainer": {"default_root_dir": "/tmp/elsewhere"}},
        {"trainer": {"profiler": {"init_args": {"dirpath": "a\0b"}}}},
        {"data": {"init_args": {"cache": "runs/../../x"}}},
        {"wandb": {"name": "../../x"}},
        {"ckpt_path": "x"},
        {"trainer": {"logger": [{"init_args": {"artifact_location": "file:/tmp"}}]}},
        {"trainer": {"logger": [{"class_path": "x", "dict_kwargs": {"config": "settings.yaml"}}]}},
        {"model": {"init_args": {"net": {"class_path": "x", "init_args": {"source": "http://127.0.0.1:9/model"}}}}},
    ],
)
def test_places_outside_of_a_run_are_refused(config: dict, tmp_path: Path, working_folder: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="run: its config sets"):
        check_config_paths(config, tmp_path / "run")


def test_a_link_inside_the_run_leads_outside(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to("/etc")
    with pytest.raises(ValueError, match="outside of the run"):
        check_config_paths({"data": {"init_args": {"cache": str(tmp_path / "run" / "link")}}}, tmp_path / "run")


def test_places_below_and_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "caches"))
    (tmp_path / "caches").mkdir()
    run = tmp_path / "run"
    places = [str(run / "a"), "runs/cache", str(tmp_path / "caches" / "b")]
    for place in places:
        check_config_paths({"data": {"init_args": {"cache": place, "root": "/data/corpus"}}}, run)
    config = {"data": {"init_args": {"cache": "/scratch"}}, "trainer": {"logger": [{"init_args": {"save_dir": "/s"}}]}}
    check_config_paths(config, run, ["--data.init_args.cache=/scratch", "--trainer.logger.save_dir", "/s"])
    check_config_paths({"output": "o"}, run, ["--output", "o"])
    net = {"class_path": "zoo.ci_llm.Backbone", "init_args": {"source": "someone/model"}}
    check_config_paths({"model": {"init_args": {"net": net}}, "init_from": "hf://someone/model"}, run)


def test_reads_every_recipe_as_yaml_does() -> None:
    for path in sorted((REPOSITORY / "configs").glob("*/*.yaml")):
        content = path.read_text(encoding="utf-8")
        assert load_yaml(content) == yaml.safe_load(content)


def test_aliases_are_kept() -> None:
    content = load_yaml("a: &a [1, {b: 2}]\nc: *a\nd: {<<: {e: 1}}")
    assert content == {"a": [1, {"b": 2}], "c": [1, {"b": 2}], "d": {"e": 1}}


@pytest.mark.parametrize(
    "content",
    [
        "a: [",
        "!!python/name:os.system",
        "a: &a [*a]",
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
        "a: {b: 1, b: 2}",
        "[" * 100_000,
        "'" + "x" * 2**20 + "'",
    ],
)
def test_other_yaml_is_refused(content: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(content)


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    for text in ("[" * 200_000, "{"):
        with pytest.raises(ValueError):
            load_json(text)
    monkeypatch.setattr(foreign_files, "MAX_JSON", 5)
    with pytest.raises(ValueError, match="at most 5"):
        load_json("[1, 2]")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_at_line_feeds_alone(tmp_path: Path, mark: bytes, end: str) -> None:
    lines = ["erste", "a\u2028b\u0085c\x0cd\x0be\x1cf", "", "é日本"]
    (tmp_path / "list.txt").write_bytes(mark + end.join([*lines, ""]).encode())
    assert read_lines(tmp_path / "list.txt") == lines
    (tmp_path / "latin.txt").write_bytes("one\ntwo\nné\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt:3: .*UTF-8"):
        read_lines(tmp_path / "latin.txt")
