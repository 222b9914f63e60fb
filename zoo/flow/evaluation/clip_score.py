"""How well images show what their prompts say, by a CLIP model that the user brings."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from zoo.flow.data.images import to_values
from zoo.flow.evaluation.extractors import BATCH, with_channels
from zoo.flow.inference.generate import LABELS_NAME
from zoo.runs.frozen import load_tokenizer, pretrained

# of CLIP's images in [0, 1]; Radford et al. (2021), https://github.com/openai/CLIP
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class ClipScore:
    """100 max(0, cosine) of the embeddings of an image and its prompt.

    Args:
        source: folder in transformers' layout with a CLIP model and its tokenizer, or a hub id.
        revision: commit of the hub repository.
        device: torch device.

    Raises:
        FileNotFoundError: when there is nothing at the source.

    Source: Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning" (2021), equation 1, with
    100 in the place of 2.5, as torchmetrics has it.
    """

    def __init__(self, source: str, revision: str | None = None, device: str = "cpu") -> None:
        from transformers import CLIPModel

        self.tokenizer = load_tokenizer(source, revision)
        self.model = pretrained(CLIPModel, source, revision, dtype=torch.float32).to(device).eval()

    @torch.no_grad()
    def __call__(self, pixels: np.ndarray, prompts: Sequence[str], batch_size: int = BATCH) -> np.ndarray:
        """Scores (N,), 0 to 100, of images (N, H, W, C), uint8; they are resized to squares, bicubic and antialiased.

        Args:
            prompts: one for each image; what is longer than the model takes is cut.
            batch_size: images at once.
        """
        if len(prompts) != len(pixels):
            raise ValueError(f"expected a prompt for each image, found {len(pixels)} images and {len(prompts)} prompts")
        texts = {text: row for row, text in enumerate(dict.fromkeys(prompts))}
        embedded = torch.cat([self._texts(list(texts)[i : i + batch_size]) for i in range(0, len(texts), batch_size)])
        images = [self._images(pixels[i : i + batch_size]) for i in range(0, len(pixels), batch_size)]
        rows = embedded[[texts[text] for text in prompts]]
        return (100 * (torch.cat(images) * rows).sum(dim=1).clamp(min=0)).double().cpu().numpy()

    def _texts(self, texts: list[str]) -> torch.Tensor:
        """Unit vectors (n, D) of texts."""
        most = self.model.config.text_config.max_position_embeddings
        read = self.tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt")
        found = self.model.text_model(**read.to(self.model.device)).pooler_output
        return F.normalize(self.model.text_projection(found), dim=1)

    def _images(self, pixels: np.ndarray) -> torch.Tensor:
        """Unit vectors (n, D) of images (n, H, W, C), uint8."""
        side = self.model.config.vision_config.image_size
        images = with_channels(to_values(pixels), 3) / 2 + 0.5
        images = F.interpolate(images, (side, side), mode="bicubic", antialias=True).clamp(0, 1)
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        found = self.model.vision_model(((images - mean) / deviation).to(self.model.device)).pooler_output
        return F.normalize(self.model.visual_projection(found), dim=1)


def prompts_of(
    generated: Path, count: int, given: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> list[str]:
    """The prompt of each sample.

    Args:
        generated: folder of `zoo sample`, whose labels.csv has them, or another set of images.
        count: of samples.
        given: in the place of those of labels.csv, taken in turns; {} stands for the name of the class.
        names: of each sample's class; None where there are none.

    Raises:
        ValueError: when nothing tells them.
    """
    if given:
        if names is None and any("{}" in text for text in given):
            raise ValueError(f"{generated}: the samples have no classes to put in the place of {{}} in --prompts")
        turns = [given[index % len(given)] for index in range(count)]
        return turns if names is None else [text.replace("{}", name) for text, name in zip(turns, names, strict=True)]
    source = generated / LABELS_NAME
    rows: list[dict[str, str]] = []
    if source.is_file():
        with source.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    if not rows or "prompt" not in rows[0]:
        raise ValueError(f"{generated}: no column prompt in {LABELS_NAME}: give --prompts, which are taken in turns")
    return [row["prompt"] for row in rows]
