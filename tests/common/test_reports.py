import math

import numpy as np

from zoo.common.reports import new_figure, write_report


def test_suffix_decides_the_format(tmp_path):
    figure = new_figure(1.0, 1.0)
    files = {
        "a.csv": (("name", "value"), [{"name": "x, y", "value": 1 / 3}, {"name": None, "value": math.nan}]),
        "a.json": {"ü": [1.0, (math.nan, math.inf)]},
        "a.jsonl": [{"é": 1}, {}],
        "a.md": "# Ü\n",
        "a.npy": np.arange(3),
        "a.png": figure,
        "b.png": None,
    }
    write_report(tmp_path / "new", files)
    contents = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert contents.keys() == files.keys() - {"b.png"}
    assert contents["a.csv"] == b'name,value\n"x, y",0.3333333\n,nan\n'
    assert contents["a.json"].decode() == '{\n "ü": [\n  1.0,\n  [\n   null,\n   null\n  ]\n ]\n}'
    assert contents["a.jsonl"].decode() == '{"é": 1}\n{}\n'
    assert contents["a.md"].decode() == "# Ü\n"
    assert np.load(tmp_path / "new" / "a.npy").tolist() == [0, 1, 2]
    assert contents["a.png"].startswith(b"\x89PNG")
