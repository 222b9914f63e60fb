"""Flags win over files, wherever they stand."""

from pathlib import Path

import pytest
import yaml

from tests.harness import REPOSITORY, forked, good
from zoo.cli.options import files_first


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--seed", "1", "--config", "a.yaml"], ["--config", "a.yaml", "--seed", "1"]),
        (["--seed=1", "-c", "a.yaml", "--config=b.yaml"], ["-c", "a.yaml", "--config=b.yaml", "--seed=1"]),
        (["--data.x", "1", "--data", "d.yaml"], ["--data", "d.yaml", "--data.x", "1"]),
        (
            ["--model=Net", "--model.net=d.yaml", "--model.net.x=1"],
            ["--model=Net", "--model.net=d.yaml", "--model.net.x=1"],
        ),
        (["--model.net.x=1", "--model.net", "d.yaml"], ["--model.net", "d.yaml", "--model.net.x=1"]),
        (["source", "target", "--count", "3"], ["source", "target", "--count", "3"]),
        (["--more+=d.yaml", "source", "--config"], ["--config", "--more+=d.yaml", "source"]),
        (["--root", "missing.yaml", "--x", "1"], ["--root", "missing.yaml", "--x", "1"]),
    ],
)
def test_files_come_before_the_flags_that_they_could_override(
    given: list[str], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.yaml").touch()
    assert files_first(given) == wanted
    assert files_first(wanted) == wanted


def test_a_seed_before_the_recipe_is_the_seed_of_the_run(tmp_path: Path) -> None:
    data = tmp_path / "data.yaml"
    data.write_text("init_args: {batch_size: 64}\n")
    flags = ["--seed_everything", "77", "--trainer.max_steps", "1", "--trainer.num_sanity_val_steps", "0"]
    flags += ["--data.init_args.batch_size=8", "--trainer.default_root_dir=run", "--trainer.limit_val_batches=0"]
    recipe = ["--config", REPOSITORY / "configs" / "flow" / "demo_swissroll.yaml", "--data", data]
    good(forked("fit", *flags, *recipe, cwd=tmp_path))
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["seed_everything"], config["trainer"]["max_steps"]) == (77, 1)
    assert (config["data"]["init_args"]["seed"], config["data"]["init_args"]["batch_size"]) == (77, 8)


@pytest.mark.parametrize(
    ("text", "told"),
    [("- a\n- b\n", "expected a mapping"), ("a: [", "data.yaml"), ("a: !!python/name:os.system x\n", "data.yaml")],
)
def test_a_file_that_is_no_mapping_is_named(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(text)
    result = forked("fit", "--config", REPOSITORY / "configs" / "flow" / "smoke.yaml", "--data", file, cwd=tmp_path)
    assert result.returncode == 2
    (line,) = [line for line in result.stderr.splitlines() if "error:" in line]
    assert "data.yaml" in line and told in line
