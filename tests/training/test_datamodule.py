from pathlib import Path

import numpy as np
import pytest
from toy_system.data import PairData

import zoo
from tests.harness import TOY_FIT
from zoo.cli.main import main
from zoo.training.resume import BucketBatchSampler


def test_lengths_choose_buckets() -> None:
    data = PairData(items=20, batch_size=3)
    data.setup("fit")
    data.lengths = np.arange(20)
    data.load_state_dict({"epoch": 1, "batch": 2})
    loader = data.train_dataloader()
    assert isinstance(loader.batch_sampler, BucketBatchSampler) and len(list(loader)) == 4
    assert not isinstance(data.val_dataloader().batch_sampler, BucketBatchSampler)
    data.lengths = data.lengths[:5]
    with pytest.raises(ValueError, match="5 lengths for 20"):
        data.train_dataloader()


def test_resume_with_other_data_warns_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit = [*map(str, TOY_FIT), f"--trainer.default_root_dir={tmp_path}"]
    warnings = []
    size, limit = "data.batch_size=4", ["trainer.limit_train_batches=10", "trainer.precision=bf16-mixed"]
    for steps, changes in enumerate([[], [size], [size, "data.num_workers=1"], [size, *limit]], start=1):
        resumed = ["--ckpt_path=last"] if steps > 1 else []
        caplog.clear()
        options = [f"--{change}" for change in changes]
        assert main([*fit, *resumed, *options, f"--trainer.max_steps={steps}"]) == 0
        warnings.append([each.getMessage() for each in caplog.records if each.getMessage().startswith("resumed with")])
    assert [len(lines) for lines in warnings] == [0, 1, 0, 1]
    assert "batch size 4 (was 2)" in warnings[1][0]
    assert "precision bf16-mixed (was 32-true), limit train batches 10 (was 1.0)" in warnings[3][0]
    for items, is_warned in ((0, False), (9, True)):
        caplog.clear()
        changed = [f"--data.items={items}"] if items else []
        assert main(["validate", *fit[1:], "--ckpt_path=last", *changed]) == 0
        assert ("other training data than the checkpoint" in caplog.text) == is_warned


@pytest.mark.parametrize(
    ("recipe", "change"),
    [
        ("flow/demo_swissroll", "kind=moons"),
        ("hifigan/smoke", "corpus.embedded_utterances=7"),
        ("ci_llm/smoke", "max_items=20"),
    ],
)
def test_other_data_has_other_facts(recipe: str, change: str, working_folder: Path) -> None:
    facts = []
    for options in ([], ["data.num_workers=0", "data.batch_size=3"], [f"data.{change}"]):
        _, data, data.trainer = zoo.build(recipe, options)
        data.prepare_data()
        data.setup("fit")
        facts.append(data.state_dict()["circumstances"]["contents"])
    assert facts[0] == facts[1] != facts[2]
