from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import ByT5Tokenizer, CLIPConfig, CLIPModel

from zoo.flow.evaluation.clip_score import DEVIATION, MEAN, ClipScore, prompts_of
from zoo.flow.evaluation.evaluate import evaluate

TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
PROMPTS = ["a cat", "a dog", "a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP model of random weights that reads bytes."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("clip")
    text = {**TINY, "vocab_size": 384, "max_position_embeddings": 16, "eos_token_id": 1}
    CLIPModel(
        CLIPConfig(text_config=text, vision_config={**TINY, "image_size": 8, "patch_size": 4}, projection_dim=8)
    ).save_pretrained(place)
    ByT5Tokenizer().save_pretrained(place)
    return place


def pixels(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, channels), dtype=np.uint8)


def test_scores_are_the_models_own_cosines(folder: Path) -> None:
    images = pixels(3)
    found = ClipScore(str(folder))(images, PROMPTS, batch_size=2)
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), ByT5Tokenizer.from_pretrained(folder)
    values = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (MEAN, DEVIATION))
    read = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(pixel_values=(values - mean) / deviation, **read)
    expected = 100 * F.cosine_similarity(output.image_embeds, output.text_embeds).clamp(min=0)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


def test_grey_images_of_another_size_and_long_prompts_are_taken(folder: Path) -> None:
    score = ClipScore(str(folder))
    grey = np.repeat(pixels(2, 1), 2, axis=1).repeat(2, axis=2)
    found = score(grey, ["a" * 100, "b"])
    assert found.shape == (2,) and np.all((found >= 0) & (found <= 100))
    np.testing.assert_allclose(score(np.repeat(grey, 3, axis=-1), ["a" * 100, "b"]), found)
    with pytest.raises(ValueError, match="2 images and 1 prompts"):
        score(grey, ["a"])


def test_prompts_come_from_the_folder_or_are_taken_in_turns(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label,seed,prompt\n0.png,0,1,a cat\n1.png,0,2,\n")
    assert prompts_of(tmp_path, 2) == ["a cat", ""]
    assert prompts_of(tmp_path, 3, ["x", "y"]) == ["x", "y", "x"]
    assert prompts_of(tmp_path, 2, ["a {}"], ["cat", "dog"]) == ["a cat", "a dog"]
    with pytest.raises(ValueError, match=r"no classes to put in the place of \{\}"):
        prompts_of(tmp_path, 2, ["a {}"])
    (tmp_path / "labels.csv").write_text("file,label,seed\n0.png,1,1\n")
    with pytest.raises(ValueError, match="no column prompt"):
        prompts_of(tmp_path, 1)


def test_the_report_has_the_mean(folder: Path, tmp_path: Path) -> None:
    images, labels = pixels(6), [0, 1] * 3
    np.savez(tmp_path / "a.npz", images=images, labels=labels, classes=["cat", "dog"])
    report = evaluate(
        tmp_path / "a.npz", tmp_path / "out", tmp_path / "a.npz", extractor="pixels", cache=None,
        metrics=["frechet"], clip=str(folder), prompts=["a {}"],
    )  # fmt: skip
    row = report["rows"][-1]
    scores = ClipScore(str(folder))(images, ["a cat", "a dog"] * 3)
    assert row["figure"] == "clip_score" and row["value"] == pytest.approx(scores.mean())
    assert row["low"] <= row["value"] <= row["high"] and row["samples"] == 6
