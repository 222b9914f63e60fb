"""EnCodec as a front end: the embedded codes of a recording, at one of several bitrates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.common.checks import check_within
from zoo.common.tensors import seeded_rng
from zoo.runs.frozen import FrozenModule
from zoo.runs.pretrained_files import build_config, load_pretrained


class EncodecFeatures(FrozenModule):
    """A frozen EnCodec, of which encoder and codebooks are used: audio to embedded codes, as the mel of a `Vocos`.

    Args:
        source: hub id (facebook/encodec_24khz) or a folder in transformers' layout; null for random weights.
        revision: commit of the hub repository.
        config: for random weights: arguments of transformers' EncodecConfig.
        bandwidths: in kbit/s, some of the codec's; their order numbers the conditions of `Vocos(conditions=...)`.
        seed: of random weights.

    Source: Défossez et al., "High Fidelity Neural Audio Compression" (2022); as a front end: Vocos, section 4.3.
    """

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        bandwidths: Sequence[float] = (1.5, 3.0, 6.0, 12.0),
        seed: int = 0,
    ) -> None:
        from transformers import EncodecModel
        from transformers.models.encodec.modeling_encodec import EncodecConv1d

        super().__init__(source, revision)
        if source is None and config is None:
            raise ValueError("EncodecFeatures: give source (pretrained) or config (random weights)")
        if source is not None:
            self.model = load_pretrained(EncodecModel, source, revision, dtype=torch.float32)
        else:
            with seeded_rng(seed):
                self.model = EncodecModel(build_config({**(config or {}), "model_type": "encodec"}))
                for layer in self.model.quantizer.layers:  # transformers leaves them zero, and all codes equal
                    layer.codebook.embed.normal_()
        for module in self.model.modules():
            if isinstance(module, EncodecConv1d):
                _keep_on_host(module)
        settings = self.model.config
        if settings.audio_channels != 1 or settings.normalize or settings.chunk_length_s:
            raise ValueError(
                f"EncodecFeatures: expected a codec of one channel without chunks (24 kHz), found {source}"
            )
        unknown = [each for each in bandwidths if each not in settings.target_bandwidths]
        if unknown or not bandwidths:
            raise ValueError(f"bandwidths: {unknown or 'none'}; the codec has {settings.target_bandwidths} kbit/s")
        self.bandwidths = tuple(bandwidths)
        self.sample_rate, self.hop_length = settings.sampling_rate, settings.hop_length
        self.n_mels = settings.codebook_dim  # channels of a frame, by the name that LogMel has for them
        self.padding_samples = None  # its recurrent layers see all that was before
        self.min_samples = self.hop_length * 4  # its convolutions reflect the ends
        self.requires_grad_(False)
        self.eval()

    @property
    def codebooks(self) -> Tensor:
        """Entries of the codebooks that the largest bandwidth uses, one below the other (K * size, dim)."""
        count = self.model.quantizer.get_num_quantizers_for_bandwidth(max(self.bandwidths))
        return torch.cat([layer.codebook.embed for layer in self.model.quantizer.layers[:count]])

    def codes(self, waveform: Tensor, bandwidth: int) -> Tensor:
        """Codes (K, B, F) int64 of audio (B, T) at the bandwidth of a number; K grows with it."""
        check_within(0, len(self.bandwidths) - 1, bandwidth=bandwidth)
        short = self.min_samples - waveform.shape[-1]
        with torch.no_grad(), torch.autocast(waveform.device.type, enabled=False):
            padded = torch.nn.functional.pad(waveform.float(), (0, max(short, 0)))
            return self.model.quantizer.encode(self.model.encoder(padded[:, None]), self.bandwidths[bandwidth])

    def embed(self, codes: Tensor) -> Tensor:
        """Features (B, dim, F) of codes (K, B, F) or (K, F), K at most that of the largest bandwidth."""
        codes = codes[:, None] if codes.dim() == 2 else codes
        size = self.model.config.codebook_size
        offsets = size * torch.arange(len(codes), device=codes.device)[:, None, None]
        return self.codebooks[codes + offsets].sum(0).transpose(1, 2)

    def forward(self, waveform: Tensor, bandwidth: int = 0) -> Tensor:
        """Features (B, dim, F) of audio (B, T), F = ceil(T / hop_length), at the bandwidth of a number."""
        return self.embed(self.codes(waveform, bandwidth))


def _keep_on_host(convolution: Any) -> None:
    """Take a convolution's sizes from its buffers: every call reads them, and would wait for the device."""
    inner = convolution.conv
    kernel, stride = (inner.kernel_size[0] - 1) * inner.dilation[0] + 1, inner.stride[0]
    for name, value in {"kernel_size": kernel, "stride": stride, "padding_total": kernel - stride}.items():
        delattr(convolution, name)
        setattr(convolution, name, torch.tensor(value, device="cpu"))
