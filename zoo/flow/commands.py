"""Tools of flow matching alone: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "sample": (
        "zoo.flow.inference.generate:sample",
        "Draw samples from a run into a folder: 0.png, ..., labels.csv, a grid; with --trajectory true an animation.",
    ),
    "compare-samplers": (
        "zoo.flow.evaluation.solver_tables:compare_solvers",
        "Compare solvers and guidance scales by quality at equal numbers of net calls (NFE): tables and JSON.",
    ),
    "make-pairs": (
        "zoo.flow.inference.pairs:write_pairs",
        "Write a run's samples with the noise that each was made of, to train on: reflow and distillation.",
    ),
    "straightness": (
        "zoo.flow.evaluation.solver_tables:print_straightness",
        "Print how far a run's paths are from straight lines; 0 is a net that one Euler step samples exactly.",
    ),
    "evaluate": (
        "zoo.flow.evaluation.evaluate:evaluate",
        "Compare generated images with real ones: Fréchet distance, accuracy, variety, copying.",
    ),
}
