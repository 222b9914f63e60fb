"""`zoo consolidate`: a checkpoint in shards as one file."""

from __future__ import annotations

from pathlib import Path


def main(path: Path, output: Path | None = None) -> None:
    """Write a checkpoint folder of FSDP2 as one checkpoint file, with everything that a resume needs.

    Args:
        path: run folder (its newest sound checkpoint) or checkpoint.
        output: file to write; by default the checkpoint becomes a file under its own name.

    Raises:
        FileExistsError: when there is something at `output` already.
        ValueError: when the checkpoint is torn, or is one file already.
    """
    from zoo.runs.checkpoints import is_folder, load_checkpoint, save_checkpoint
    from zoo.runs.folder import find_checkpoint

    found = find_checkpoint(path)
    if not is_folder(found):
        raise ValueError(f"{found} is one file already")
    if output is not None and output.exists():
        raise FileExistsError(f"{output} exists already; name another file with --output")
    save_checkpoint(load_checkpoint(found), output or found)
    print(f"wrote {output or found}")
