"""Tools of no system: command -> the function, whose signature and docstring are its options and help."""

COMMANDS = {
    "compare": "zoo.cli.commands.runs:compare",
    "completion": "zoo.cli.commands.listing:print_completion",
    "consolidate": "zoo.cli.commands.consolidate:main",
    "convert": "zoo.cli.commands.files:convert",
    "convert-config": "zoo.cli.commands.files:convert_config",
    "doctor": "zoo.cli.commands.doctor:main",
    "export": "zoo.cli.commands.files:export",
    "inspect": "zoo.cli.commands.inspect:main",
    "list": "zoo.cli.commands.listing:list_recipes",
    "predict": "zoo.cli.commands.predict:main",
    "push": "zoo.cli.commands.files:push",
    "runs": "zoo.cli.commands.runs:runs",
}
