"""Commands of CompressedAD: function, and first line of its docstring."""

COMMANDS = {
    "evaluate": (
        "zoo.compressed_ad.evaluation.evaluate:evaluate",
        "Let a frozen policy learn tasks in its context, against exact random, oracle and explorer returns.",
    ),
    "report": (
        "zoo.compressed_ad.evaluation.report:report",
        "Compare evaluations: curves with intervals, regret, bars per task, sweeps; figures, Markdown and JSON.",
    ),
    "collect": (
        "zoo.compressed_ad.collecting.collect:collect_histories",
        "Write the histories of an algorithm that learns tasks, to distil it.",
    ),
    "import-histories": (
        "zoo.compressed_ad.convert.history_files:import_histories",
        "Turn a history file of the original (hdf5) into a folder of histories.",
    ),
    "import-xland": (
        "zoo.compressed_ad.convert.history_files:import_xland",
        "Turn a file of XLand-100B or Trivial-20B (hdf5) into a folder of histories.",
    ),
    "export-histories": (
        "zoo.compressed_ad.convert.history_files:export_histories",
        "Turn a folder of histories into a history file that the original reads (hdf5).",
    ),
}
