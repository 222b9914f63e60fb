"""Tools of flow matching alone: command -> the function that it calls, whose signature and docstring are its help."""

COMMANDS = {
    "sample": "zoo.flow.inference.generate:sample",
    "compare_samplers": "zoo.flow.evaluation.tables:sweep_run",
    "make_pairs": "zoo.flow.inference.pairs:write_pairs",
    "straightness": "zoo.flow.evaluation.tables:print_straightness",
    "evaluate": "zoo.flow.evaluation.evaluate:evaluate",
}
