from __future__ import annotations

from functools import partial
from pathlib import Path

from scripts.bench.tools import Finding, Settings, in_folders


def test_each_benchmark_has_a_folder_that_is_gone_afterwards() -> None:
    seen: list[Path] = []

    def count(settings: Settings) -> list[Finding]:
        """Counts."""
        assert settings.folder.is_dir() and not any(settings.folder.iterdir())
        seen.append(settings.folder)
        return [Finding("rounds", settings.few(9, 2), "")]

    run = in_folders({"count": count}, partial(Settings, lambda args: None))["count"]
    assert [run(quick)[0].value for quick in (False, True)] == [9, 2]
    assert run.__doc__ == "Counts."
    assert seen[0] != seen[1] and not any(folder.exists() for folder in seen)
