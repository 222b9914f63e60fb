"""Tools of CI-LLM alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "evaluate": (
        "zoo.ci_llm.evaluation.evaluate:evaluate",
        "Ask a crowd questions: single agents, ensembles, votes, self-consistency, oracle; likelihood and calibration.",
    ),
    "benchmark": (
        "zoo.ci_llm.evaluation.benchmark:benchmark",
        "Put a benchmark to a crowd: the backbone, every agent, every rule that joins them, and their vote.",
    ),
    "merge": (
        "zoo.ci_llm.convert.merge:merge",
        "Merge the adapters of a crowd into one PEFT adapter, or into the backbone.",
    ),
}
