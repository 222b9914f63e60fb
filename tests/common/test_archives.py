import contextlib
import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.harness import contents
from zoo.common.foreign_files import extract_archive

CONTENT = {"a.wav": b"one" * 1000, "deep/er/b.wav": bytes(range(256)) * 40}


def make_archive(folder: Path, suffix: str, contents: dict[str, bytes] = CONTENT) -> Path:
    for name, content in contents.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_bytes(content)
    kind = {".tar": "tar", ".zip": "zip"}.get(suffix, "gztar")
    made = Path(shutil.make_archive(str(folder / "made"), kind, folder / "in"))
    return made.rename(folder / f"corpus{suffix}")


@pytest.mark.parametrize("expected", [CONTENT, {"a.txt": b"x"}], ids=["large", "small"])
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".zip"])
def test_archive_is_extracted_and_can_be_extracted_again(tmp_path, suffix, expected):
    archive = make_archive(tmp_path, suffix, expected)  # a small one may have less than a block of tar
    for _ in range(2):
        assert extract_archive(archive, tmp_path / "out") == len(expected)
        assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["../evil.wav", "/tmp/evil.wav", "a/../../evil.wav"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_stay_below_the_folder(tmp_path, name, kind):
    archive = tmp_path / f"a.{kind}"
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    else:
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr(name, b"x")
    out = tmp_path / "deep" / "out"
    with contextlib.suppress(ValueError):
        extract_archive(archive, out)
    assert all(path.is_relative_to(out) for path in tmp_path.rglob("evil.wav")) and not Path("/tmp/evil.wav").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("a.wav")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(ValueError, match=r"a\.tar"):
        extract_archive(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out" / "a.wav").exists()


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_cut_archives_are_refused(tmp_path, suffix, share):
    content = make_archive(tmp_path, suffix).read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"cut\{suffix}: cut, damaged"):
        extract_archive(path, tmp_path / "out")
    assert not list(tmp_path.glob("out/**/*.wav"))


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 9)], ids=["encrypted", "Deflate64"])
def test_zips_that_cannot_be_read_are_refused(tmp_path, offset, value):
    path = make_archive(tmp_path, ".zip")
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + offset] = value  # of the last entry of the directory
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"corpus\.zip"):
        extract_archive(path, tmp_path / "out")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        extract_archive(tmp_path / "gone.zip", tmp_path / "out")
    with pytest.raises(ValueError, match="ending in"):
        extract_archive(tmp_path / "a.rar", tmp_path / "out")
