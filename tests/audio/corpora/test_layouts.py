import tarfile
import zipfile

import numpy as np
import pytest

from zoo.audio.corpora.layouts import Utterance, detect_layout, list_utterances
from zoo.audio.corpora.prepare import prepare
from zoo.audio.corpora.synthetic import write_synthetic_corpus
from zoo.audio.io import files


def wav(path, samples=240):
    files.write(path, np.linspace(-0.5, 0.5, samples), 24000)
    return path


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


@pytest.fixture
def jvs(tmp_path):
    root = tmp_path / "jvs_ver1"
    for speaker in ("jvs001", "jvs002"):
        for subset in ("parallel100", "whisper10"):
            wav(root / speaker / subset / "wav24kHz16bit" / "VOICEACTRESS100_001.wav")
            text(root / speaker / subset / "transcripts_utf8.txt", "VOICEACTRESS100_001:また、東寺のように、:五大\n")
        wav(root / speaker / "parallel100" / "wav24kHz16bit" / "VOICEACTRESS100_002.wav")
    return root


@pytest.fixture
def fleurs(tmp_path):
    root = tmp_path / "fleurs-r"
    for locale, inner in (("ja_jp", "train"), ("en_us", "")):
        folder = root / "data" / locale
        wav(folder / "audio" / "train" / inner / "123.wav")
        rows = f'7\t123.wav\tsay "{locale}\tnormalised\tc h\t240\tMALE\n8\tgone.wav\tlost\tx\ty\t1\tMALE\n'
        text(folder / "train.tsv", rows)
    wav(root / "data" / "ja_jp" / "audio" / "test" / "test" / "9.wav")
    text(root / "data" / "ja_jp" / "test.tsv", "1\t9.wav\ttext\n")
    return root


def test_libritts_r(tmp_path):
    root = tmp_path / "LibriTTS_R"
    chapter = root / "dev-clean" / "84" / "121123"
    for number in (1, 2):
        wav(chapter / f"84_121123_000007_00000{number}.wav")
    text(chapter / "84_121123.trans.tsv", '84_121123_000007_000001\t"Go, 1."\t"Go, one."\n')
    wav(root / "train-clean-100" / "19" / "198" / "19_198_000000_000000.flac")
    utterances = list_utterances(root)
    assert detect_layout(root) == "libritts_r"
    assert [(u.speaker, u.name, u.text, u.language) for u in utterances] == [
        ("19", "19/198/19_198_000000_000000", "", "en"),
        ("84", "84/121123/84_121123_000007_000001", '"Go, one."', "en"),
        ("84", "84/121123/84_121123_000007_000002", "", "en"),
    ]


def test_fleurs_r(fleurs, caplog):
    utterances = list_utterances(fleurs)
    assert detect_layout(fleurs) == "fleurs_r"
    assert [(u.name, u.text, u.language, u.speaker) for u in utterances] == [
        ("en_us/train/123", 'say "en_us', "en_us", ""),
        ("ja_jp/test/9", "text", "ja_jp", ""),
        ("ja_jp/train/123", 'say "ja_jp', "ja_jp", ""),
    ]
    assert all(u.path.is_file() for u in utterances)
    assert "2 listed files are missing: en_us/train/gone.wav" in caplog.text
    text(fleurs / "data" / "ja_jp" / "dev.tsv", "1\tonly.wav\n")
    with pytest.raises(ValueError, match=r"dev\.tsv:1: expected 3 fields"):
        list_utterances(fleurs)


def test_ljspeech(tmp_path, caplog):
    write_synthetic_corpus(tmp_path, 4, 16000, seconds=(0.2, 0.3))
    (tmp_path / "wavs" / "SP004-0004.wav").rename(tmp_path / "wavs" / "unlisted.wav")
    utterances = list_utterances(tmp_path)
    assert detect_layout(tmp_path) == "ljspeech"
    assert [u.name for u in utterances] == ["SP001-0001", "SP002-0002", "SP003-0003", "unlisted"]
    assert utterances[3].text == "" and "1 listed files are missing: SP004-0004" in caplog.text
    first = utterances[0]
    assert (first.text, first.speaker, first.language) == ("Utterance 1 of speaker 1.", "LJ", "en")


def test_tree_names_are_unique_keys(tmp_path):
    for name in ("ann/a.wav", "ann/a.flac", "bob/x/12.30 h.wav", "top.wav", "ann/.hidden.wav"):
        wav(tmp_path / name)
    utterances = list_utterances(tmp_path)
    assert [(u.name, u.speaker) for u in utterances] == [
        ("ann/a_flac", "ann"),
        ("ann/a_wav", "ann"),
        ("bob/x/12_30 h", "bob"),
        ("top", ""),
    ]
    wav(tmp_path / "ann" / "a_wav.wav")
    with pytest.raises(ValueError, match="both called 'ann/a_wav'"):
        list_utterances(tmp_path)


def test_prepare_unpacks_archives(jvs, fleurs, tmp_path):
    with zipfile.ZipFile(tmp_path / "jvs_ver1.zip", "w") as archive:
        for path in files.find_audio_files(jvs):
            archive.write(path, path.relative_to(jvs.parent))
    facts = prepare("jvs", [tmp_path / "jvs_ver1.zip"], tmp_path / "jvs")
    assert facts["utterances"] == 6 and facts["corpus"] == str(tmp_path / "jvs" / "jvs_ver1")
    audio = fleurs / "data" / "ja_jp" / "audio"
    with tarfile.open(audio / "dev.tar.gz", "w:gz") as packed:
        packed.add(audio / "test" / "test" / "9.wav", "dev/5.wav")
    text(fleurs / "data" / "ja_jp" / "dev.tsv", "1\t5.wav\tdev text\n")
    assert prepare("fleurs_r", [fleurs])["utterances"] == 4
    with pytest.raises(ValueError, match="archives and --output"):
        prepare("jvs", [tmp_path / "jvs_ver1.zip"])


def test_transcript_files_of_a_tree_are_read(tmp_path, caplog):
    wavs = tmp_path / "corpus" / "wavs"
    for name in ("a", "b", "c", "d"):
        files.write(wavs / f"{name}.wav", np.zeros(8), 8000)
    (wavs.parent / "metadata.csv").write_text("a|raw|listed a\nb|raw|listed b\n")
    (wavs / "b.txt").write_text("beside\nb \n")
    (wavs / "c.lab").write_text("\ufeffbeside c")
    assert {each.name: each.text for each in list_utterances(wavs)} == {
        "a": "listed a", "b": "beside b", "c": "beside c", "d": "",
    }  # fmt: skip
    (wavs.parent / "metadata.csv").write_text("file_name,text\n")
    assert {each.text for each in list_utterances(wavs)} == {"", "beside b", "beside c"}
    assert "no transcripts taken" in caplog.text


def test_jvs(jvs):
    utterances = list_utterances(jvs)
    assert detect_layout(jvs) == "jvs" and detect_layout(jvs.parent) == "jvs" and len(utterances) == 6
    path = jvs / "jvs001" / "parallel100" / "wav24kHz16bit" / "VOICEACTRESS100_001.wav"
    name = "jvs001/parallel100/VOICEACTRESS100_001"
    assert utterances[0] == Utterance(path, "jvs001", "また、東寺のように、:五大", name, "ja")
    assert utterances[1].text == ""
