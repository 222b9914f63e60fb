"""Converters between checkpoints of other projects and ours: one engine, and in each system the tables that it reads.

- `tensor_names`: a table of names, read in both directions: `NameTable(("ff.{n}.{rest}", "layers.{n}.{rest}"), ...)`.
- `network_description`: `component("zoo.flow.UNet", channels=size_of_axis("head.weight"), heads=setting("heads", 4))`
  describes a net; its leaves read the file's tensors and settings.
- `settings`: the original's configuration as a recipe, for `zoo convert-config`.
- `engine`: a system derives its converter from `Converter`; it fills in what a loaded file is, how it becomes ours and
  how a net is written back. `zoo/<system>/convert/__init__.py` names its bound methods `convert`, `describe`, ...

Files convert weights, averages and the numbers of steps and epochs. Optimizers start fresh.
"""
