"""Tools that choose settings of a recipe by training: command -> the function, whose signature and docstring help."""

COMMANDS = {
    "tune": "zoo.tuning.study:main",
}
