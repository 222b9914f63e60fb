import pytest

from zoo.common.configs import read_lines

SEPARATORS = "a\u2028b\u0085c\x0cd\x0be\x1cf"  # str.splitlines() splits at each of them


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_lines_end_at_line_feeds_alone(tmp_path, mark, end, last):
    path = tmp_path / "list.txt"
    path.write_bytes(mark + end.join(["erste", SEPARATORS, "", "é日本", last]).encode())
    assert read_lines(path) == ["erste", SEPARATORS, "", "é日本"] + ([last] if last else [])


def test_empty_file_has_no_lines(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert read_lines(tmp_path / "empty") == []


def test_other_encodings_are_refused_with_file_and_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("one\ntwo\nné\n".encode("latin-1"))
    with pytest.raises(ValueError) as error:
        read_lines(path)
    assert str(error.value).startswith(f"{path}:3: ") and "UTF-8" in str(error.value)
