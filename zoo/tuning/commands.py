"""Tools that choose settings of a recipe by training: command -> the function, with the first line of its docstring."""

COMMANDS = {
    "tune": ("zoo.tuning.study:main", "Search a recipe's keys for the best metric: zoo tune RECIPE --search ..."),
    "find-lr": ("zoo.tuning.lr_finder:find_lr", "Find learning rates by a range test: zoo find-lr RECIPE."),
    "find-batch": ("zoo.tuning.batch_finder:find_batch", "Find the largest batch that trains: zoo find-batch RECIPE."),
    "find-precision": ("zoo.tuning.precision_finder:find_precision", "Compare precisions on a recipe's first steps."),
}
