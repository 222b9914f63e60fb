"""`zoo push`."""

from __future__ import annotations

from pathlib import Path


def main(
    run: str,
    name: str,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    onnx: bool = False,
    license: str = "unknown",
    evaluation: Path | None = None,
    root: Path = Path("runs"),
) -> None:
    """Push a run's weights with a model card, samples and curves to a Hugging Face hub.

    The same push again changes nothing, and one that was killed is finished by the same command. The token is that of
    `hf auth login` or HF_TOKEN; HF_ENDPOINT names another hub.

    Args:
        run: run folder, its name below `root`, `last`, a checkpoint or an export.
        name: user/name of the model; made when there is none.
        private: make it for yourself only.
        revision: branch; made when there is none.
        message: of the commit.
        onnx: also as ONNX (needs the extra `export`); see `zoo export`.
        license: of the weights, as the hub calls it, e.g. mit or cc-by-4.0.
        evaluation: folder that `zoo evaluate` wrote, for the card; those in the run's folder are found.
        root: folder of the runs that names are looked for in.
    """
    from zoo.runs.hub.push import push
    from zoo.runs.listing import find_run

    path = Path(run) if Path(run).exists() else find_run(run, root)
    pushed = push(path, name, private, revision, message, onnx, license, [evaluation] if evaluation else [])
    print(f"{'pushed' if pushed.changed else 'nothing new in'} {pushed.page}")
    print(f"  {pushed.name}")
