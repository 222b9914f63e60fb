import gzip
import io
import json
import tarfile

import numpy as np
import pytest
import soundfile

from zoo.audio.corpora.unpack import unpack_archive, unpack_shards
from zoo.audio.io import files
from zoo.audio.io.archives import read_tar
from zoo.audio.io.shards import CLEAN, DEGRADED, ShardReader, ShardWriter, expand


def audio_bytes(samples=100, kind="WAV", scale=0.5):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.linspace(-scale, scale, samples), 24000, format=kind, subtype="PCM_16")
    return buffer.getvalue()


def pair(number, suffix=".wav"):
    clean = audio_bytes(100 + number, suffix[1:].upper())
    return {f"speech{suffix}": clean, "degraded_speech.wav": audio_bytes(90 + number), "json": b'{"a": 1}'}


def tar(path, members, compress=False):
    with tarfile.open(path, "w:gz" if compress else "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_round_trip(tmp_path, compress):
    samples = {f"spk/日本 {i}_0": pair(i, ".flac" if i % 2 else ".wav") for i in range(5)}
    with ShardWriter(tmp_path, "x", max_samples=2, compress=compress) as writer:
        for key, members in samples.items():
            writer.write(key, members)
    suffix = ".tar.gz" if compress else ".tar"
    tables = [] if compress else [f"x-00000{i}.tar.offsets.json" for i in range(3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["index.json", *(f"x-00000{i}{suffix}" for i in range(3)), *tables]
    )
    reader = ShardReader(tmp_path)
    reader.verify()
    found = list(reader)
    assert {sample.key: dict(sample.members) for sample in found} == samples
    audio, rate = found[1].audio(CLEAN)
    assert audio.shape == (1, 101) and rate == 24000 and found[1].facts() == {"a": 1}
    assert found[0].member(DEGRADED) == "degraded_speech.wav"
    with pytest.raises(ValueError, match="has no mel"):
        found[0].member("mel")


def test_equal_samples_give_equal_bytes_and_a_killed_writer_goes_on(tmp_path):
    samples = [(f"k{i}_0", pair(i)) for i in range(7)]
    with ShardWriter(tmp_path / "whole", max_samples=2) as writer:
        for key, members in samples:
            writer.write(key, members)
    writer = ShardWriter(tmp_path / "cut", max_samples=2)
    for key, members in samples[:5]:
        writer.write(key, members)  # and never closed: the fifth is in no shard
    resumed = ShardWriter(tmp_path / "cut", max_samples=2)
    assert resumed.last_key == "k3_0"
    with resumed:
        for key, members in samples[4:]:
            resumed.write(key, members)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes()


def test_a_failing_writer_leaves_whole_shards_only(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path, max_bytes=1) as writer:
        writer.write("a_0", pair(0))
        writer.write("b_0", pair(1))
        raise RuntimeError
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("index.json", "shard-000000.tar", "shard-000000.tar.offsets.json")
    ]


@pytest.mark.parametrize("key", ["../a", "/a", "a.b", "a//b", "a:b", "a\\b", ""])
def test_writer_refuses_names_that_cannot_be_read_again(tmp_path, key):
    with pytest.raises(ValueError), ShardWriter(tmp_path) as writer:
        writer.write(key, pair(0))


def test_writer_refuses_repeated_keys(tmp_path):
    with pytest.raises(ValueError, match="two samples"), ShardWriter(tmp_path) as writer:
        writer.write("a_0", pair(0))
        writer.write("a_0", pair(0))


@pytest.mark.parametrize("compress", [False, True])
def test_every_cut_is_noticed(tmp_path, compress):
    path = tar(tmp_path / "a.tar", [(f"{i}.speech.wav", bytes([i + 1]) * 700) for i in range(4)], compress)
    whole = path.read_bytes()
    assert len(list(ShardReader(path))) == 4
    for size in range(1, 4 * 1536 + 1 if not compress else len(whole), 256 if not compress else 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.tar: .*cut"):
            list(ShardReader(path))


def test_damaged_header_is_noticed(tmp_path):
    path = tar(tmp_path / "a.tar", [(f"{i}.speech.wav", bytes([i + 1]) * 700) for i in range(4)])
    data = bytearray(path.read_bytes())
    data[2 * 1536] ^= 255  # the third header: tarfile would stop there without a word
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        list(ShardReader(path))


def test_index_notices_an_altered_shard(tmp_path):
    with ShardWriter(tmp_path) as writer:
        writer.write("a_0", pair(0))
    path = tmp_path / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="sha256"):
        ShardReader(path).verify()
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"cut or altered, it has \d+ bytes where index.json says"):
        ShardReader(path)
    with pytest.raises(ValueError, match="cut or altered"):
        ShardWriter(tmp_path)


def test_patterns_and_lists(tmp_path):
    for name in ("a-000000.tar", "a-000001.tar", "b-000000.tar.gz"):
        tar(tmp_path / name, [("k.speech.wav", b"x")])
    names = lambda shards: [path.name for path in expand(shards)]  # noqa: E731
    assert names(tmp_path) == ["a-000000.tar", "a-000001.tar", "b-000000.tar.gz"]
    assert names(f"{tmp_path}/a-{{000000..000001}}.tar") == ["a-000000.tar", "a-000001.tar"]
    assert names([f"{tmp_path}/{{b-000000.tar.gz,a-000001.tar}}", tmp_path / "a-000000.tar"]) == [
        *("b-000000.tar.gz", "a-000001.tar", "a-000000.tar")
    ]
    with pytest.raises(FileNotFoundError, match=r"a-000002\.tar"):
        expand(f"{tmp_path}/a-{{000000..000002}}.tar")
    with pytest.raises(ValueError, match="rising range"):
        expand("a-{3..1}.tar")
    with pytest.raises(ValueError, match="twice"):
        expand([tmp_path, tmp_path / "a-000000.tar"])
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="no shards here"):
        expand(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no such shard"):
        expand("pipe:cat a.tar")


@pytest.mark.parametrize("name", ["../a.speech.wav", "/a.speech.wav", "a/../../b.wav", "a\\..\\b.wav", "C:a.wav"])
def test_unsafe_members_are_refused(tmp_path, name):
    path = tar(tmp_path / "a.tar", [("ok.speech.wav", b"x"), (name, b"x")])
    with pytest.raises(ValueError, match="unsafe member name"):
        list(ShardReader(path))
    with pytest.raises(ValueError, match="unsafe member name"):
        unpack_archive(path, tmp_path / "out" / "in", progress=False)
    assert [p.name for p in (tmp_path / "out").rglob("*")] == ["in", "ok.speech.wav"]


def test_links_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("a.speech.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match="is a link"):
        list(ShardReader(tmp_path / "a.tar"))


def test_hidden_members_are_left_out_and_dot_slash_is_taken(tmp_path):
    path = tar(tmp_path / "a.tar", [("./._a.wav", b"x"), ("./a.speech.wav", b"y")])
    assert [(s.key, dict(s.members)) for s in ShardReader(path)] == [("a", {"speech.wav": b"y"})]


@pytest.mark.parametrize(
    ("names", "cause"),
    [
        (("a.speech.wav", "b.speech.wav", "a.degraded_speech.wav"), "do not stand together"),
        (("a.speech.wav", "a.speech.wav"), "two members"),
        (("README",), "no key and extension"),
    ],
)
def test_keys_must_be_clear(tmp_path, names, cause):
    path = tar(tmp_path / "a.tar", [(name, b"x") for name in names])
    with pytest.raises(ValueError, match=cause):
        list(ShardReader(path))


def test_unpack_makes_mirrored_trees_once(tmp_path, caplog):
    with ShardWriter(tmp_path / "s", max_samples=2) as writer:
        for i in range(4):
            writer.write(
                f"spk{i % 2}/k{i}_0", pair(i, ".flac" if i == 3 else ".wav") | {"resampled_speech.pth": b"\x80"}
            )
        writer.write("bad_0", {"speech.wav": audio_bytes()[:60], "degraded_speech.wav": audio_bytes()})
        writer.write("alone_0", {"speech.wav": audio_bytes()})
    out = tmp_path / "out"
    facts = unpack_shards(tmp_path / "s", out, progress=False)
    assert (facts["shards"], facts["pairs"], sorted(facts["bad"])) == (3, 4, ["alone_0", "bad_0"])
    assert "sample 'bad_0', clean: cut" in caplog.text
    names = [p.relative_to(out).as_posix() for p in files.walk(out)]
    assert names == [
        *("clean/spk0/k0_0.wav", "clean/spk0/k2_0.wav", "clean/spk1/k1_0.wav", "clean/spk1/k3_0.flac"),
        *(f"degraded/{key}.wav" for key in ("spk0/k0_0", "spk0/k2_0", "spk1/k1_0", "spk1/k3_0")),
    ]
    assert json.loads((out / "facts" / "spk0" / "k0_0.json").read_text()) == {"a": 1}
    assert (out / names[3]).read_bytes() == pair(3, ".flac")["speech.flac"]
    before = {name: (out / name).stat().st_mtime_ns for name in names}
    (out / names[0]).unlink()  # a shard that is done is not opened again
    assert unpack_shards(tmp_path / "s", out, progress=False) == facts
    assert {name: (out / name).stat().st_mtime_ns for name in names[1:]} == {n: before[n] for n in names[1:]}


def test_unpack_is_taken_up_again_in_the_middle_of_a_shard(tmp_path):
    good = [(f"k{i}_0.{ext}", data) for i in range(3) for ext, data in pair(i).items()]
    path = tar(tmp_path / "a.tar.gz", good, compress=True)
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-12000]))
    with pytest.raises(ValueError, match="cut"):
        unpack_shards(path, tmp_path / "out", progress=False)
    path.write_bytes(whole)
    assert unpack_shards(path, tmp_path / "out", progress=False)["pairs"] == 3


def test_unpack_refuses_what_would_be_overwritten(tmp_path):
    for name in ("a.tar", "b.tar"):
        tar(tmp_path / name, [(f"k_0.{ext}", data) for ext, data in pair(0).items()])
    with pytest.raises(ValueError, match=r"a\.tar and .*b\.tar both hold a sample 'k_0'"):
        unpack_shards(tmp_path, tmp_path / "out", progress=False)
    tar(tmp_path / "c.tar", [("k_0.speech.wav", b"x")])
    with pytest.raises(ValueError, match="none of 1 samples"):
        unpack_shards(tmp_path / "c.tar", tmp_path / "out2", progress=False)


def test_unpack_archive_is_taken_up_again(tmp_path):
    path = tar(tmp_path / "a.tar.gz", [("d/a.txt", b"one"), ("d/b.txt", b"two")], compress=True)
    assert unpack_archive(path, tmp_path / "out", progress=False) == 2
    (tmp_path / "out" / "d" / "a.txt").write_bytes(b"x")
    (tmp_path / "out" / "d" / "b.txt").write_bytes(b"TWO")
    unpack_archive(path, tmp_path / "out", progress=False)
    assert [(tmp_path / "out" / "d" / n).read_bytes() for n in ("a.txt", "b.txt")] == [b"one", b"TWO"]
    with pytest.raises(ValueError, match="expected an archive ending in"):
        unpack_archive(tar(tmp_path / "a.7z", []), tmp_path)
    with pytest.raises(FileNotFoundError):
        unpack_archive(tmp_path / "b.zip", tmp_path)
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04no")
    with pytest.raises(ValueError, match="no such archive"):
        unpack_archive(tmp_path / "c.zip", tmp_path)
    assert [member.name for member in read_tar(path)] == ["d/a.txt", "d/b.txt"]
