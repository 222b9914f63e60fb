"""The wheel, not the checkout, is what users install: built, put elsewhere, and trained with there."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import zoo
from tests.harness import REPOSITORY, environment

# What users see after `pip install zoo`; every file opened meanwhile that the checkout has is noted.
SESSION = """
import json, os, sys
from pathlib import Path
checkout, target = Path(sys.argv[1]), Path(sys.argv[2])
opened = set()
def note(event, args):
    if event == "open" and isinstance(args[0], str | os.PathLike):
        path = Path(os.path.abspath(args[0]))
        if path.is_relative_to(checkout) and path.relative_to(checkout).parts[0] in sys.argv[3:]:
            opened.add(str(path))
sys.addaudithook(note)
import zoo
from zoo.cli.main import main
codes = [main(line.split()) for line in (
    "list",
    "completion bash",
    "fit hifigan/smoke trainer/cpu --trainer.max_steps 2 --trainer.val_check_interval 2 --trainer.default_root_dir run",
    "predict --ckpt_path run --input run/media --output vocoded",
)]
Path("said.json").write_text(json.dumps({
    "file": zoo.__file__, "version": zoo.__version__, "codes": codes, "opened": sorted(opened),
}))
"""


def hatchling(*args: object, cwd: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", *map(str, args)]
    built = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    hatchling("-d", folder, cwd=REPOSITORY)
    return folder


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_holds_the_package_and_no_more(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    assert wheel.name == f"zoo-{zoo.__version__}-py3-none-any.whl" and wheel.stat().st_size < 2**22
    held_out = content(wheel)
    expected = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "zoo").rglob("*") if path.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    recipes = [path.relative_to(REPOSITORY / "configs") for path in (REPOSITORY / "configs").rglob("*.yaml")]
    expected |= {f"zoo/_configs/{path.as_posix()}" for path in recipes}
    assert {"zoo/py.typed", "zoo/ui/static/zoo.css", "zoo/_configs/trainer/cpu.yaml"} <= expected
    info = f"zoo-{zoo.__version__}.dist-info"
    apart = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    apart |= {f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE")}
    starters = ("kubernetes.yaml", "launch.sh", "slurm.sh")
    apart |= {f"zoo-{zoo.__version__}.data/data/share/zoo/{name}" for name in starters}
    assert set(held_out) == expected | apart
    shutil.unpack_archive(sdist, tmp_path)
    hatchling("-t", "wheel", "-d", tmp_path / "again", cwd=tmp_path / sdist.name.removesuffix(".tar.gz"))
    assert content(next((tmp_path / "again").glob("*.whl"))) == held_out


def test_a_version_is_the_same_wherever_it_stands() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## ([0-9.]+) \((.*)\)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == (zoo.__version__, str(citation["date-released"])) and citation["version"] == zoo.__version__


def test_it_trains_away_from_the_checkout(dist: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", target, *dist.glob("*.whl")], check=True)
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    away = environment(PYTHONPATH=str(target))
    parts = [path.name for path in REPOSITORY.iterdir() if not path.name.startswith(".")]
    done = subprocess.run(
        [sys.executable, script, REPOSITORY, target, *parts], cwd=tmp_path, env=away, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    message = json.loads((tmp_path / "said.json").read_text())
    assert Path(message["file"]) == target / "zoo" / "__init__.py" and message["version"] == zoo.__version__
    assert message["codes"] == [0, 0, 0, 0] or message["codes"] == [None, None, 0, 0]
    assert message["opened"] == []
    assert b"hifigan/smoke" in done.stdout
    assert (tmp_path / "run" / "step_00000002.ckpt").is_file() and list((tmp_path / "vocoded").rglob("*.wav"))
    assert (target / "bin" / "zoo").is_file() and (target / "share" / "zoo" / "slurm.sh").is_file()
