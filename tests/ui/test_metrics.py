"""metrics.csv: appended rows alone are read, and few points keep the extremes."""

from pathlib import Path

import pytest

from zoo.ui.metrics import MetricsReader


def append(run: Path, *lines: str) -> None:
    with (run / "metrics.csv").open("a") as file:
        file.write("".join(lines))


def test_appended_rows_are_added_and_a_half_row_waits(tmp_path: Path) -> None:
    reader = MetricsReader()
    assert reader.read(tmp_path) == {}
    append(tmp_path, "step,epoch,a\n", "0,0,1\n", "1,0,")
    before = reader.read(tmp_path)["a"]
    assert before == (((0.0, 1.0),), ())
    assert reader.read(tmp_path)["a"][0] is before[0]  # not sent again
    append(tmp_path, "3\n", "2,0,nan\n")
    assert reader.read(tmp_path)["a"][0] == ((0.0, 1.0), (1.0, 3.0))
    assert reader.read(tmp_path, 0.5)["a"] == (((0.0, 1.0), (1.0, 2.0)), ((0.0, 1.0), (1.0, 3.0)))


@pytest.mark.parametrize("text", ["step,epoch,b\n0,0,5\n", ""])
def test_a_replaced_or_cut_file_is_read_again(tmp_path: Path, text: str) -> None:
    reader = MetricsReader()
    append(tmp_path, "step,epoch,a\n", *[f"{step},0,1\n" for step in range(9)])
    assert "a" in reader.read(tmp_path)
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").replace(tmp_path / "metrics.csv")
    assert reader.read(tmp_path).get("b", ()) == ((((0.0, 5.0),), ()) if text else ())
    (tmp_path / "metrics.csv").unlink()
    assert reader.read(tmp_path) == {}


def test_a_file_of_other_columns_may_have_the_number_of_the_one_before(tmp_path: Path) -> None:
    reader = MetricsReader()
    append(tmp_path, "step,epoch,a\n", "0,0,1\n")
    assert "a" in reader.read(tmp_path)
    (tmp_path / "metrics.csv").write_text("step,epoch,a,b\n0,0,1,\n1,0,2,3\n")
    curves = reader.read(tmp_path)
    assert curves["a"][0] == ((0.0, 1.0), (1.0, 2.0)) and curves["b"][0] == ((1.0, 3.0),)
    (tmp_path / "metrics.csv").write_text("step,epoch,a,b\n0,0,1,\n1,0,5,6\n2,0,7,8\n")  # other rows alone
    assert reader.read(tmp_path)["b"][0] == ((1.0, 6.0), (2.0, 8.0))


def test_diverged_metrics_are_named_and_a_validation_before_step_1_is_left_out(tmp_path: Path) -> None:
    reader = MetricsReader()
    append(tmp_path, "step,epoch,train/loss,val/loss\n", "0,,,9\n", "0,0,1,\n", "1,0,nan,\n", "2,0,inf,4\n")
    curves = reader.read(tmp_path)
    assert (curves["train/loss"], curves["val/loss"]) == ((((0.0, 1.0),), ()), (((2.0, 4.0),), ()))
    assert reader.describe_divergence(tmp_path) == "train/loss is not finite since step 1"
    append(tmp_path, "3,0,2,\n")
    assert reader.describe_divergence(tmp_path) == ""
    append(tmp_path, f"4,0,{'9' * 200_000}\n", "5,0,3\n")  # no table from here on
    assert reader.read(tmp_path)["train/loss"] == (((0.0, 1.0), (3.0, 2.0)), ())
