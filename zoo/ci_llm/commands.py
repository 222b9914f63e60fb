"""Tools of CI-LLM alone: command -> the function that it calls, whose signature and docstring are its help."""

COMMANDS = {
    "evaluate": "zoo.ci_llm.evaluation.evaluate:evaluate",
    "benchmark": "zoo.ci_llm.evaluation.benchmark:benchmark",
    "merge": "zoo.ci_llm.convert.merge:merge",
}
