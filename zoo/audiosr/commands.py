"""Tools of AudioSR alone: command -> the function that it calls, whose signature and docstring are its help."""

COMMANDS = {
    "preprocess": "zoo.audiosr.data.preparing:preprocess",
    "splice": "zoo.audiosr.data.preparing:splice",
    "cache": "zoo.audiosr.data.datamodule:cache",
    "evaluate": "zoo.audiosr.evaluation.evaluate:evaluate_run",
    "compare-checkpoints": "zoo.audiosr.evaluation.compare:compare_files",
}
