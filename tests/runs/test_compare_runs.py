import pytest

from tests.run_folders import make
from zoo.runs.compare_runs import compare_runs, result_table


def test_more_is_better_where_a_run_states_so(tmp_path):
    rows = "step,epoch,val/loss\n9,0,1\n19,0,3\n29,0,2\n"
    results = compare_runs([make(tmp_path / name, mode="max", rows=rows) for name in "ab"], tmp_path)
    assert result_table(results, ["val/loss"]) == {"val/loss ↑": ["3 (2)", "3 (2)"]}


def test_results_of_validate_test_and_evaluate(tmp_path):
    run = make(tmp_path / "run")
    (run / "test.csv").write_text("step,epoch,test/loss\n10,0,0.125\n")
    (run / "validate.csv").write_text("step,epoch,val/loss\n10,0,9\n")
    results = compare_runs([run, run], tmp_path)
    assert results.values("test/loss") == [(0.125, 0.125)] * 2
    assert results.values("val/loss") == [(0.5, 0.5)] * 2
    audio = tmp_path / "audio"
    audio.mkdir()
    (audio / "summary.csv").write_text("system,measure,mean\nours,lsd,1.5\nbase,lsd,nan?\n")
    assert result_table(compare_runs([audio, audio], tmp_path), ["ours/lsd"]) == {"ours/lsd": ["1.5", "1.5"]}
    images = tmp_path / "images"
    images.mkdir()
    (images / "evaluation.json").write_text('{"frechet": {"value": 2.5}, "name": "x", "ok": true}')
    (images / "torn.json").write_text("{")
    assert compare_runs([images, images], tmp_path).values("frechet.value") == [(2.5, 2.5)] * 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: neither a run"):
        compare_runs([run, tmp_path / "empty"], tmp_path)
