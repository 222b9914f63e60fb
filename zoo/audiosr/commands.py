"""Tools of AudioSR alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "cache": (
        "zoo.audiosr.evaluation.evaluate:cache",
        "Decode a recipe's corpus into its memory-mapped cache before training; a killed call is resumed.",
    ),
    "evaluate": (
        "zoo.audiosr.evaluation.evaluate:evaluate_run",
        "Measure how well a run restores clips at cut-offs, with baselines and the ceiling of its components.",
    ),
}
