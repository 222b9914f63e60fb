"""Tools of no system: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "compare": (
        "zoo.cli.commands.compare:main",
        "Show how runs differ in config, results and curves: zoo compare RUN RUN ...",
    ),
    "completion": (
        "zoo.cli.commands.completion:main",
        'Print what lets a shell complete commands, recipes and runs: eval "$(zoo completion bash)".',
    ),
    "consolidate": (
        "zoo.cli.commands.consolidate:main",
        "Write a checkpoint folder of FSDP2 as one checkpoint file, with everything that a resume needs.",
    ),
    "convert": (
        "zoo.cli.commands.convert:main",
        "Convert an original's checkpoint to ours, or ours to the original's format.",
    ),
    "convert-config": (
        "zoo.cli.commands.convert_config:main",
        "Translate an original's configuration file into a recipe of ours.",
    ),
    "doctor": (
        "zoo.cli.commands.doctor:main",
        "Report on this machine and installation; with --config try a recipe for one step.",
    ),
    "export": (
        "zoo.cli.commands.export:main",
        "Write a run's weights as fused safetensors with config and model card, and as ONNX.",
    ),
    "inspect": (
        "zoo.cli.commands.inspect:main",
        "Tell what a checkpoint, run folder, export or original's file holds and whether it is sound.",
    ),
    "list": ("zoo.cli.commands.list:main", "List systems and recipes by name, a line each."),
    "plan": (
        "zoo.cli.commands.plan:main",
        "Estimate memory, hours, disk and cost of a run: zoo plan RECIPE [FRAGMENT | KEY=VALUE | options of fit ...].",
    ),
    "predict": (
        "zoo.cli.commands.predict:main",
        "Run a checkpoint on files: predict --ckpt_path RUN --input PATH --output DIR.",
    ),
    "pull": (
        "zoo.cli.commands.pull:main",
        "Fetch a model that was pushed, or an original's published weights as ours; without a name, list those.",
    ),
    "push": (
        "zoo.cli.commands.push:main",
        "Push a run's weights with a model card, samples and curves to a Hugging Face hub.",
    ),
    "runs": ("zoo.cli.commands.runs:main", "List runs, the newest first, or tell one: zoo runs [RUN]."),
}
