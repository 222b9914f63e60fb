"""Tools that choose settings of a recipe by training: command -> the function, with the first line of its docstring."""

COMMANDS = {
    "tune": (
        "zoo.tuning.study:main",
        "Search a recipe's keys for the best metric: zoo tune RECIPE --search 'KEY=log(1e-5, 1e-3)' ... --trials 40.",
    ),
    "find-lr": (
        "zoo.tuning.lr_finder:find_lr",
        "Find learning rates for a recipe by a range test: zoo find-lr RECIPE [options of fit].",
    ),
    "find-batch": (
        "zoo.tuning.batch_finder:find_batch",
        "Find the largest batch that trains, and the throughput of each: zoo find-batch RECIPE [options of fit].",
    ),
    "find-precision": (
        "zoo.tuning.precision_finder:find_precision",
        "Compare precisions on a recipe's first steps: zoo find-precision RECIPE [options of fit].",
    ),
}
