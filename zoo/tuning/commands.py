"""Tools that look for the settings of a recipe: command -> the function that it calls."""

COMMANDS = {
    "find_lr": "zoo.tuning.lr_range:main",
    "find_batch": "zoo.tuning.batch_size:main",
}
