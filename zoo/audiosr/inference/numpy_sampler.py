"""AudioSR from its ONNX parts, with numpy and onnxruntime alone: `zoo export --onnx` puts this file beside them.

    from onnx_audiosr import AudioSR
    generated = AudioSR("FOLDER")(audio, cutoff_hz=4000)  # (T,) float32 at its sample rate, peak about 0.95

It makes one clip of about the length that the nets were trained on, and gives what they generate: the band below the
cut-off comes from the input in the mel, not sample by sample. Long recordings, finding the cut-off, and putting the
known band back are in `zoo.audiosr.Restorer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

GRAPHS = ("encoder", "clip_encoder", "denoiser", "decoder", "vocoder")


class AudioSR:
    """The parts in a folder, and the process that they were trained on.

    Args:
        folder: of the `.onnx` files and `onnx_audiosr.npz`.
        providers: of onnxruntime.
    """

    def __init__(self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)) -> None:
        import onnxruntime

        with np.load(Path(folder) / "onnx_audiosr.npz") as tables:
            self.tables = {name: tables[name] for name in tables.files}
        self.sample_rate, self.hop, self.unit = (int(self.tables[name]) for name in ("sample_rate", "hop", "unit"))
        files = {name: Path(folder) / f"{name}.onnx" for name in GRAPHS}
        self.graphs: dict[str, Any] = {
            name: onnxruntime.InferenceSession(file, providers=list(providers))
            for name, file in files.items()
            if file.is_file()
        }

    def __call__(
        self,
        audio: np.ndarray,
        cutoff_hz: float,
        steps: int | None = None,
        guidance_scale: float | None = None,
        noise: np.ndarray | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        """Generate what lies above a cut-off.

        Args:
            audio: (T,) at `sample_rate`, -1 to 1, whose band ends at the cut-off.
            steps: of DDIM; those of the exported run, at most 50, when None.
            guidance_scale: the exported run's when None; 1 takes half as long.
            noise: what to start from, of the latents' shape (1, C, H, W); drawn by the seed when None.

        Returns:
            Audio (T,) float32.

        Raises:
            ValueError: when the clip is longer than the global encoder has positions.
        """
        samples = -(-len(audio) // self.unit) * self.unit
        if samples > (most := int(self.tables["most_samples"])):
            raise ValueError(f"a clip has at most {most} samples here, not {len(audio)}: cut it, or use zoo.load")
        mel = self.log_mel(np.pad(np.asarray(audio, np.float32), (0, samples - len(audio))))  # (1, 1, F, n_mels)
        (condition,) = self.graphs["encoder"].run(None, {"mel": mel})
        encoded: dict[str, np.ndarray] = {}
        if "clip_encoder" in self.graphs:
            context, sequence = self.graphs["clip_encoder"].run(None, {"mel": mel})
            encoded = {"context": context, "sequence": sequence}
        if noise is None:
            noise = np.random.default_rng(seed).standard_normal(condition.shape).astype(np.float32)
        scale = float(self.tables["guidance_scale"]) if guidance_scale is None else guidance_scale
        latents = self.ddim(noise, condition, encoded, steps or int(self.tables["steps"]), scale)
        (decoded,) = self.graphs["decoder"].run(None, {"latents": latents})
        known = self.tables["band_tops_hz"] <= cutoff_hz
        (wave,) = self.graphs["vocoder"].run(None, {"frames": np.where(known, mel, decoded)[:, 0].swapaxes(1, 2)})
        return wave[0, 0, : len(audio)]

    def log_mel(self, audio: np.ndarray) -> np.ndarray:
        """Log-mel images (1, 1, F, n_mels) float32 of audio (T,)."""
        n_fft, padding = int(self.tables["n_fft"]), int(self.tables["padding"])
        padded = np.pad(audio, padding, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[:: self.hop][: len(audio) // self.hop]
        powers = np.abs(np.fft.rfft(frames * self.tables["window"])) ** 2
        if self.tables["of_powers"]:
            bands = np.maximum(powers, float(self.tables["floor_inside"])) @ self.tables["mel_basis"].T
        else:
            bands = np.sqrt(powers + float(self.tables["floor_inside"])) @ self.tables["mel_basis"].T
        return np.log(np.maximum(bands, float(self.tables["floor"]))).astype(np.float32)[None, None]

    def ddim(
        self, x: np.ndarray, condition: np.ndarray, encoded: dict[str, np.ndarray], steps: int, scale: float
    ) -> np.ndarray:
        """Follow the process from noise (B, C, H, W) to latents, deterministically (DDIM, Song et al. 2021)."""
        total = len(self.tables["signal"])
        times = sorted({max(round(total * (1 - index / steps)) - 1, 0) for index in range(steps)}, reverse=True)
        for t, following in zip(times, [*times[1:], -1], strict=True):
            output = self._guided(x, condition, encoded, t, scale)
            signal, sigma = self._levels(t)
            if self.tables["predicts_noise"]:
                direction, clean = output, (x - sigma * output) / signal if signal else np.zeros_like(x)
            else:
                clean, direction = signal * x - sigma * output, signal * output + sigma * x
            signal, sigma = self._levels(following)
            x = (signal * clean + sigma * direction).astype(np.float32)
        return x

    def _levels(self, t: int) -> tuple[float, float]:
        return (1.0, 0.0) if t < 0 else (float(self.tables["signal"][t]), float(self.tables["sigma"][t]))

    def _guided(
        self, x: np.ndarray, condition: np.ndarray, encoded: dict[str, np.ndarray], t: int, scale: float
    ) -> np.ndarray:
        """The net's output under the condition, moved away from that without one."""
        given = {"x": x, "t": np.full(len(x), t, np.int64), **encoded}
        (output,) = self.graphs["denoiser"].run(None, {**given, "condition": condition})
        if scale == 1:
            return output
        nothing = np.full_like(condition, self.tables["unconditional"])
        (without,) = self.graphs["denoiser"].run(None, {**given, "condition": nothing})
        guided = without + scale * (output - without)
        rescale = float(self.tables["guidance_rescale"])
        if rescale:
            axes = tuple(range(1, x.ndim))
            ratio = output.std(axes, ddof=1, keepdims=True) / guided.std(axes, ddof=1, keepdims=True)
            guided = guided * (1 - rescale + rescale * ratio)
        return guided
