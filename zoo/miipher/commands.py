"""Tools of Miipher alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "degrade": (
        "zoo.miipher.data.degrade_corpus:degrade",
        "Write degraded copies of a corpus as mirrored trees clean/ and degraded/, split into train and val.",
    ),
    "evaluate": (
        "zoo.audio.evaluation.evaluate:evaluate_folders",
        "Measure restored (and degraded) files against clean ones: CSV and a summary with intervals.",
    ),
    "cache-features": (
        "zoo.miipher.inference.features:cache_features",
        "Write the features of audio as memory-mappable .npy files, for training the vocoder without the encoder.",
    ),
    "assemble": (
        "zoo.miipher.inference.restorer:assemble",
        "Write a restorer of a trained cleaner and a vocoder that was not fine-tuned on it, as an export.",
    ),
}
