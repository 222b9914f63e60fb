"""Tools of CI-LLM alone; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from zoo.common.locks import writes_into


@writes_into("output")
def evaluate(
    *,
    run: Path,
    output: Path,
    questions: Path | None = None,
    validation: Path | None = None,
    split: Literal["train", "val", "test"] = "test",
    prompt_field: str | None = None,
    answer_field: str | None = None,
    max_items: int | None = None,
    max_new_tokens: int | None = None,
    samples: list[int] | None = None,
    all_samples: int = 0,
    temperature: float = 0.7,
    layers: tuple[int, ...] = (-1,),
    batch_size: int = 16,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Ask a crowd questions: single agents, ensembles, votes, self-consistency, oracle; likelihood and calibration.

    Prints tables and writes items.jsonl, evaluation.json, evaluation.csv and pictures. The same call goes on after a
    kill. Under torchrun the processes share the work; the result is the same.

    Args:
        run: run folder, checkpoint or export.
        output: folder to write.
        questions: file, or folder with a file of the split; the run's own data when not given.
        validation: likewise, to fit the agents' weights; the run's own when the questions are.
        split: of the questions.
        prompt_field: name of the question in the files; as in training when not given.
        answer_field: name of the answer; likewise.
        max_items: first so many questions; all when not given.
        max_new_tokens: most tokens of an answer; as in training when not given.
        samples: answers of one agent for each self-consistency vote; as many as agents, and 40, when not given.
        all_samples: answers of every agent for a vote over all; 0 for none.
        temperature: of those answers.
        layers: whose distances between agents are measured.
        batch_size: questions computed together.
        seed: of the sampled answers.
        device: torch device.
    """
    from zoo.ci_llm.evaluation import evaluate as evaluation
    from zoo.common.hardware import own_device, processes

    rank, world_size = processes()
    result = evaluation.evaluate(
        run, output, questions, validation, split, prompt_field, answer_field, max_items, max_new_tokens, samples,
        all_samples, temperature, layers, batch_size, seed, own_device(device), rank, world_size,
    )  # fmt: skip
    if "missing" in result:
        print(f"{result['missing']} parts are missing: the other processes, or the same command again, answer them")
