"""Tools of no system: command -> the function that it calls, with the first line of its docstring."""

COMMANDS = {
    "compare": ("zoo.cli.commands.runs:compare", "Show how runs differ in config, results, curves: compare RUN RUN."),
    "completion": ("zoo.cli.commands.listing:print_completion", "Print a shell's completion script: completion bash."),
    "convert": ("zoo.cli.commands.files:convert", "Convert an original's checkpoint to ours, or ours to its format."),
    "convert-config": ("zoo.cli.commands.files:convert_config", "Translate an original's settings into a recipe."),
    "doctor": (
        "zoo.cli.commands.doctor:main",
        "Report on this machine and installation, or try a recipe: zoo doctor RECIPE.",
    ),
    "export": ("zoo.cli.commands.files:export", "Write a run's weights as fused safetensors with a card, and as ONNX."),
    "inspect": ("zoo.cli.commands.inspect:main", "Tell what a file or a run folder holds and whether it is valid."),
    "list": ("zoo.cli.commands.listing:list_recipes", "List systems and recipes by name: zoo list hifigan."),
    "predict": (
        "zoo.cli.commands.predict:main",
        "Run a checkpoint on files: predict --ckpt_path RUN --input PATH --output DIR.",
    ),
    "push": ("zoo.runs.hub.push:push", "Push a run's weights with a model card to a Hugging Face hub."),
    "runs": ("zoo.cli.commands.runs:runs", "List runs, the newest first, or tell one: zoo runs [RUN]."),
}
