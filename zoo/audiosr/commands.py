"""Tools of AudioSR alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "preprocess": (
        "zoo.audiosr.data.preparing:preprocess",
        "Write pairs of full-band and band-limited wavs of a folder, for `mode: paired`.",
    ),
    "splice": (
        "zoo.audiosr.data.preparing:splice",
        "Join the wav and flac files of a folder into one wav, of any length, in the order of their names.",
    ),
    "cache": (
        "zoo.audiosr.data.datamodule:cache",
        "Decode a recipe's corpus into its memory-mapped cache before training; a killed call is taken up again.",
    ),
    "evaluate": (
        "zoo.audiosr.evaluation.evaluate:evaluate_run",
        "Measure how well a run restores clips at a grid of cut-offs, beside baselines and the ceiling of its parts.",
    ),
    "compare-checkpoints": (
        "zoo.audiosr.evaluation.compare:compare_files",
        "Tell which tensors of two checkpoints differ, component by component, and by how much.",
    ),
}
