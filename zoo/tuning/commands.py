"""Tools that choose settings of a recipe by training: command -> the function, whose signature and docstring help."""

COMMANDS = {
    "tune": "zoo.tuning.study:main",
    "find_lr": "zoo.tuning.lr_finder:find_lr",
    "find_batch": "zoo.tuning.batch_finder:find_batch",
    "find_precision": "zoo.tuning.precision_finder:find_precision",
}
