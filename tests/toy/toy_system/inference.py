"""Inference: amplify arrays and files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from toy_system.nets import Gain
from zoo.audio.inference import AudioInference
from zoo.audio.io import files


class Amplifier(AudioInference):
    output_suffix = ".wav"

    def __init__(self, net: Gain) -> None:
        self.net = net

    @torch.inference_mode()
    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        return self.net(torch.as_tensor(audio)).numpy()

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        audio, sample_rate = files.read(source)
        files.write(target, self(audio, sample_rate), sample_rate)
        return {"audio_seconds": audio.shape[1] / sample_rate}
