"""Models of a hub that does not answer."""

import logging

import huggingface_hub
import pytest
from huggingface_hub import constants

from zoo.runs.pretrained_files import load_config


def test_a_hub_without_answer_is_asked_once(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    caplog.set_level(logging.INFO)
    asked, ask = [], huggingface_hub.get_hf_file_metadata
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: asked.append(url) or ask(url))
    for _ in range(2):
        with pytest.raises(
            FileNotFoundError, match="model nobody/nothing: neither a local folder nor available from the hub"
        ):
            load_config("nobody/nothing")
    assert len(asked) == 1
    assert [record.getMessage() for record in caplog.records if "Retry" in record.getMessage()] == []
