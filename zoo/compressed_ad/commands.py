"""Tools of CompressedAD alone: command -> the function that it calls, whose signature and docstring are its help."""

COMMANDS = {
    "evaluate": "zoo.compressed_ad.evaluation.evaluate:evaluate",
    "report": "zoo.compressed_ad.evaluation.report:report",
    "collect": "zoo.compressed_ad.collecting.collect:collect_histories",
    "import_histories": "zoo.compressed_ad.convert.hdf5:import_histories",
    "import_xland": "zoo.compressed_ad.convert.transitions:import_xland",
    "export_histories": "zoo.compressed_ad.convert.hdf5:export_histories",
}
