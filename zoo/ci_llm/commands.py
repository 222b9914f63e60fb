"""Tools of CI-LLM alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "evaluate": (
        "zoo.ci_llm.evaluation.evaluate:evaluate",
        "Ask a crowd questions: single agents, ensembles, votes, self-consistency, oracle; likelihood and calibration.",
    ),
}
