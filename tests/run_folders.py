"""Run folders as a fit leaves them, without a fit."""

from pathlib import Path

from zoo.runs.checkpoints import save_checkpoint

CONFIG = """# zoo==0.1.0
# recipe: {recipe}
seed_everything: 7
trainer:
  max_steps: {steps}
  max_epochs: {epochs}
  callbacks:
  - class_path: zoo.training.EMA
    init_args:
      max_steps: 3
checkpoints:
  every_n_steps: 5
  monitor: val/loss
  mode: {mode}
model:
  class_path: zoo.flow.FlowTask
data:
  class_path: zoo.flow.ImageData
  init_args:
    batch_size: 4
"""
ROWS = "step,epoch,train/loss,val/loss\n4,0,2.0,\n9,0,1.0,\n9,0,,0.5\n"
INTERRUPTED = "2026-01-01 10:00:00,000 INFO x: start\n2026-01-01 10:02:00,000 WARNING zoo.x: ended by Interrupted 143\n"


def make(
    folder: Path, steps=10, epochs="null", mode="min", recipe="flow/smoke", rows=ROWS, log="", saved=(10,)
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.format(steps=steps, epochs=epochs, mode=mode, recipe=recipe))
    (folder / "metrics.csv").write_text(rows)
    if log:
        (folder / "train.log").write_text(log)
    for step in saved:
        save_checkpoint({"global_step": step}, folder / f"step_{step:08d}.ckpt")
    return folder
