from pathlib import Path

from zoo.ui import charts, readings


def test_metrics_survive_a_torn_row_and_foreign_text(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/<b>\n0,2.0,\n1,nan,3\n2,1.0,\n3,0.")
    series = readings.Metrics().read(tmp_path)
    drawn = charts.curves(series, log_scale=True)
    assert "val/&lt;b&gt;" in drawn and "<b>3" in drawn and 'data-last-step="2"' in drawn
    assert "No values yet" in charts.curves(readings.Metrics().read(tmp_path / "none"))
    assert readings.thinned([(float(i), 0.0) for i in range(1000)], 10)[-1] == (999, 0)


def test_media(tmp_path: Path) -> None:
    for name in ("step_00000010/a.wav", "step_00000020/b.png", "step_00000020/c.html", "step_00000030/d.txt"):
        (tmp_path / "media" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "media" / name).touch()
    assert readings.last_media(tmp_path) == ("step_00000020", ["b.png"])
    assert 'src="/x/b.png"' in charts.media("/x/", "step_00000020", ["b.png"])


def test_gpus(tmp_path: Path) -> None:
    told = readings.parse_nvidia("NVIDIA H100 80GB HBM3, 37, 1024, 81559\nOld, [N/A], 1, 2\n")
    assert [(load.name, load.percent, load.used_bytes) for load in told] == [("NVIDIA H100 80GB HBM3", 37, 2**30)]
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    for name, text in (("gpu_busy_percent", "8\n"), ("mem_info_vram_used", "5\n"), ("mem_info_vram_total", "9\n")):
        (device / name).write_text(text)
    assert readings.amd_load(tmp_path) == [readings.Load("AMD card0", 8, 5, 9)]
    assert "memory" in charts.load_bar(readings.machine_load())
