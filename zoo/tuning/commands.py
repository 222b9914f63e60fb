"""Tools that choose settings of a recipe by training: command -> the function, with the first line of its docstring."""

COMMANDS = {
    "tune": (
        "zoo.tuning.study:main",
        "Search a recipe's keys for the best metric: zoo tune RECIPE --search 'KEY=log(1e-5, 1e-3)' ... --trials 40.",
    ),
    "find-lr": (
        "zoo.tuning.lr_range:main",
        "Find learning rates for a recipe by a range test: zoo find-lr RECIPE [options of fit].",
    ),
    "find-batch": (
        "zoo.tuning.batch_size:main",
        "Find the largest batch that trains, and the smallest as fast: zoo find-batch RECIPE [options of fit].",
    ),
    "find-precision": (
        "zoo.tuning.find_precision:main",
        "Compare precisions on a recipe's first steps: zoo find-precision RECIPE [options of fit].",
    ),
}
