"""Converters between checkpoints of other projects and ours: one engine, and in each wing the tables that it reads.

A wing's `convert/rules.py` shows the whole mapping of its system:

- names: `Names(("theirs.{n}.ff.0.{rest}", "ours.{n}.norm.{rest}"), …)`, read in both directions (`zoo.convert.names`);
- nets: a tree of `part("zoo.flow.UNet", channels=size("head.weight"), depth=count("blocks."), heads=said("heads", 4))`
  whose leaves are constants or read the file's tensors and settings; `filled` makes a description of it
  (`zoo.convert.sizes`);
- a subclass of `Converter` (`zoo.convert.engine`) with `system`, `task`, `inference`, `part`, `formats` and what is
  truly its own: `_interpret` (what a loaded file is), `_spec` or `build`, `_ours` (an `Original` as a `Converted`),
  `to_original`, and where the defaults do not do `read`, `_facts`, `_task_state`, `_beside`, `_from_ours`.

The engine gives `is_original`, `describe`, `original_state` and `convert` in both directions, the report, checkpoints
and exports. `zoo/<system>/convert/__init__.py` makes the one converter and names its bound methods `convert`,
`describe`, …; `recipe.py` reads settings (`read_table`, `Settings` and `set_option` of `zoo.convert.settings`) and
has `convert_config`.
"""
