"""Tools that choose settings of a recipe by training: command -> the function, whose signature and docstring help."""

COMMANDS = {
    "tune": "zoo.tuning.study:main",
    "find_lr": "zoo.tuning.lr_range:main",
    "find_batch": "zoo.tuning.batch_size:main",
    "find_precision": "zoo.tuning.find_precision:main",
}
