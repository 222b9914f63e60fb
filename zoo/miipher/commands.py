"""Tools of Miipher alone: command -> the function that it calls, whose signature and docstring are its help."""

COMMANDS = {
    "degrade": "zoo.miipher.data.degrade_corpus:degrade",
    "evaluate": "zoo.audio.evaluation.evaluate:evaluate_folders",
    "cache_features": "zoo.miipher.inference.feature_cache:cache_features",
    "assemble": "zoo.miipher.inference.restore:assemble",
}
