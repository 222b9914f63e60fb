"""The families of speech encoders in transformers: how each takes audio, and where its blocks and their parts are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from zoo.audio.analysis.mel import LogMel

SAMPLE_RATE = 16000
# of `MelFamily`: frames in one of the features; samples of the log-mels; hops that a window reaches beyond its own
_PAIR, _MEL_HOP, _MEL_WINDOW, _MEL_EDGE = 2, 160, 640, 3
_MEL_MEAN, _MEL_DEVIATION = -6.0, 2.5  # of log-mels of speech, roughly


class Family(ABC):
    """What the zoo must know of one family; one object serves one model.

    Args:
        config: the model's transformers configuration.
        pad: pad audio so that n samples give ceil(n / hop) frames, each centred in its hop.
        normalize: scale each clip to zero mean and unit variance first.
    """

    # attributes of a block
    # first and last module of what an adapter runs parallel to
    feed_forward: ClassVar[tuple[str, str]] = ("feed_forward", "feed_forward")
    last_norm: ClassVar[str] = "final_layer_norm"  # the norm that is trained with the adapters
    stack: ClassVar[str] = "encoder.layers"  # attribute of a model: its blocks
    depth: ClassVar[str] = "num_hidden_layers"  # attribute of a configuration: how many blocks
    key_mapping: ClassVar[dict[str, str] | None] = None  # of `from_pretrained`, where files hold more than the encoder

    def __init__(self, config: Any, pad: bool, normalize: bool) -> None:
        self.config = config
        self.pad = pad
        self.normalize = normalize
        self.hop_samples, self.context_samples = self.geometry()

    @abstractmethod
    def geometry(self) -> tuple[int, int]:
        """Samples per frame, and samples that a frame sees beyond its own hop."""

    @abstractmethod
    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features (B, frames, dim) of prepared waveforms (B, T); `lengths` (B,) counts the prepared samples."""

    @classmethod
    def truncate(cls, config: Any, layer: int) -> None:
        """Let a configuration have `layer` blocks."""
        setattr(config, cls.depth, layer)

    def closing_norm(self) -> str | None:
        """Name the norm that follows a model's last block, where it is pre-LN; None without one."""
        return "encoder.layer_norm" if getattr(self.config, "do_stable_layer_norm", False) else None

    def frames(self, samples: Any) -> Any:
        """Frames of so many samples (an int or an integer tensor)."""
        if self.pad:
            return -(-samples // self.hop_samples)
        return (samples - self.context_samples - self.hop_samples) // self.hop_samples + 1

    def prepare(self, waveform: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Normalise and pad waveforms (B, T); samples from `lengths` on become zero."""
        if lengths is not None:
            waveform = waveform * valid_mask(lengths, waveform.shape[1])
        if self.normalize:
            waveform = normalize_clips(waveform, lengths)
        if not self.pad:
            if waveform.shape[1] < self.hop_samples + self.context_samples:
                raise ValueError(
                    f"{waveform.shape[1]} samples give no frame: at least {self.hop_samples + self.context_samples} "
                    "are needed without padding (pad: false)"
                )
            return waveform, lengths
        left = self.context_samples // 2
        right = self.context_samples - left + -waveform.shape[1] % self.hop_samples
        if lengths is not None:
            lengths = self.frames(lengths) * self.hop_samples + self.context_samples
        return F.pad(waveform, (left, right)), lengths


class WaveformFamily(Family):
    """HuBERT, WavLM, wav2vec 2.0: strided convolutions on the waveform, then Transformer blocks (post- or pre-LN)."""

    def geometry(self) -> tuple[int, int]:
        """From kernels and strides of the convolutions: 320 and 80 for all published models."""
        hop = field = 1
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride, strict=True):
            field += (kernel - 1) * hop
            hop *= stride
        return hop, field - hop

    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features; padding enters neither the group norm's statistics nor the attention."""
        x = waveform[:, None]  # (B, 1, T)
        for kernel, stride, layer in zip(
            self.config.conv_kernel, self.config.conv_stride, model.feature_extractor.conv_layers, strict=True
        ):
            if lengths is None:
                x = layer(x)
                continue
            lengths = (lengths - kernel) // stride + 1
            if isinstance(getattr(layer, "layer_norm", None), nn.GroupNorm):
                x = layer.activation(_masked_group_norm(layer.conv(x), layer.layer_norm, lengths))
            else:
                x = layer(x)
        x = model.feature_projection(x.transpose(1, 2))  # (B, F, dim)
        if isinstance(x, tuple):  # wav2vec 2.0 and WavLM also return what they projected
            x = x[0]
        mask = None if lengths is None else valid_mask(lengths, x.shape[1])
        return model.encoder(x, attention_mask=mask).last_hidden_state


class BertFamily(Family):
    """w2v-BERT 2.0: filter banks by the family's own feature extractor, then Conformer blocks."""

    feed_forward = "ffn2", "ffn2"

    def geometry(self) -> tuple[int, int]:
        """Two windows of 25 ms, 10 ms apart, make a frame."""
        return 320, 240

    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features; the filter banks are computed on the CPU, clip by clip (transformers' extractor)."""
        from transformers import SeamlessM4TFeatureExtractor

        extractor = SeamlessM4TFeatureExtractor(pad_to_multiple_of=2)
        clips = _clips(waveform, lengths)
        inputs = extractor(clips, sampling_rate=SAMPLE_RATE, return_tensors="pt", padding=True)
        x = inputs["input_features"].to(waveform)
        x = model.feature_projection(x)[0]  # (B, F, dim)
        mask = None if lengths is None else valid_mask((lengths - self.context_samples) // self.hop_samples, x.shape[1])
        return model.encoder(x, attention_mask=mask).last_hidden_state


class MelFamily(Family):
    """HuBERT's Transformer on log-mels: pairs of frames take the place of the convolutions' output.

    The configuration is HuBERT's, with `conv_dim` of one number, twice the bands. With `do_stable_layer_norm` and
    without `feat_proj_layer_norm` features keep the log-mels. Source: Lin et al., "MelHuBERT" (2022).
    """

    def __init__(self, config: Any, pad: bool, normalize: bool) -> None:
        if len(config.conv_dim) != 1 or config.conv_dim[0] % _PAIR:
            raise ValueError(f"mel_hubert: conv_dim is [bands of two frames], an even number, found {config.conv_dim}")
        super().__init__(config, pad, normalize)
        bands = config.conv_dim[0] // _PAIR
        self.mel = LogMel(SAMPLE_RATE, 1024, _MEL_HOP, _MEL_WINDOW, bands, 0.0, None)

    def geometry(self) -> tuple[int, int]:
        """Two windows of 64 ms (40 ms of them not zero), 10 ms apart, make a frame; whole hops of silence around."""
        return _PAIR * _MEL_HOP, 2 * _MEL_EDGE * _MEL_HOP

    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features; log-mels are computed by torch, on the model's device."""
        count = (waveform.shape[1] - self.context_samples) // self.hop_samples
        mels = self.mel(waveform).transpose(1, 2)[:, _MEL_EDGE : _MEL_EDGE + _PAIR * count]
        x = ((mels - _MEL_MEAN) / _MEL_DEVIATION).to(waveform.dtype)
        x = model.feature_projection(x.unflatten(1, (-1, _PAIR)).flatten(2))  # (B, F, dim)
        mask = None if lengths is None else valid_mask((lengths - self.context_samples) // self.hop_samples, x.shape[1])
        return model.encoder(x, attention_mask=mask).last_hidden_state


class UniversalSpeechFamily(Family):
    """The USM-type audio encoder of Gemma 3n: log-mels by its own extractor, 25 Hz, Conformer blocks."""

    feed_forward = "ffw_layer_end", "ffw_layer_end"
    last_norm = "norm"
    stack, depth = "conformer", "conf_num_hidden_layers"

    def geometry(self) -> tuple[int, int]:
        """Windows of 513 samples, 160 apart, four to a frame."""
        return 640, 353

    @classmethod
    def truncate(cls, config: Any, layer: int) -> None:
        """Let a configuration have `layer` blocks, and keep all frames."""
        super().truncate(config, layer)
        config.conf_reduction_factor = 1

    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features; log-mels (on the CPU, transformers' extractor) and their subsampling are computed clip by clip.

        The subsampling has no mask, so that a batch would let padding into the last frames.
        """
        from transformers import Gemma3nAudioFeatureExtractor

        extractor = Gemma3nAudioFeatureExtractor(feature_size=self.config.input_feat_size)
        frames = []
        for clip in _clips(waveform, lengths):
            inputs = extractor([clip], truncation=False, pad_to_multiple_of=None, return_tensors="pt")
            frames.append(model.subsample_conv_projection(inputs["input_features"].to(waveform))[0])
        x = pad_sequence(frames, batch_first=True)  # (B, F, dim)
        padded = ~valid_mask(torch.tensor([len(each) for each in frames], device=x.device), x.shape[1])
        for block in model.conformer:
            x = block(x, padded)
        return x


class WhisperFamily(Family):
    """Whisper's encoder: log-mels relative to the clip's loudest, two convolutions, then pre-LN blocks; 50 Hz.

    Clips are not padded to the 30 s that Whisper was trained on. Source: Radford et al., "Robust speech recognition via
    large-scale weak supervision" (2022).
    """

    feed_forward = "fc1", "fc2"
    stack, depth = "layers", "encoder_layers"
    key_mapping: ClassVar = {r"^model\.encoder\.": ""}

    def __init__(self, config: Any, pad: bool, normalize: bool) -> None:
        from transformers import WhisperFeatureExtractor

        super().__init__(config, pad, normalize)
        filters = WhisperFeatureExtractor(feature_size=config.num_mel_bins).mel_filters  # (201, bands)
        self.filters = torch.tensor(filters, dtype=torch.float32)

    def geometry(self) -> tuple[int, int]:
        """Two windows of 25 ms, 10 ms apart, make a frame."""
        return 320, 240

    def closing_norm(self) -> str:
        """Name the encoder's."""
        return "layer_norm"

    def encode(self, model: Any, waveform: Tensor, lengths: Tensor | None) -> Tensor:
        """Features; ValueError for clips longer than the encoder's positions, 30 s."""
        count = (waveform.shape[1] - self.context_samples) // self.hop_samples
        if count > self.config.max_source_positions:
            seconds = self.config.max_source_positions * self.hop_samples / SAMPLE_RATE
            raise ValueError(f"Whisper's encoder takes clips of at most {seconds:g} s; choose shorter chunks")
        frames = torch.full((len(waveform),), count, device=waveform.device)
        if lengths is not None:
            frames = (lengths - self.context_samples) // self.hop_samples
        mask = valid_mask(2 * frames, 2 * count)[:, None]  # of log-mels
        # each frame is centred in its hop when the first of its two windows is
        x = self._log_mels(F.pad(waveform, (-self.hop_samples // 4, self.hop_samples // 4)), mask)
        x = F.gelu(model.conv1(x)) * mask
        x = F.gelu(model.conv2(x)).transpose(1, 2) + model.embed_positions.weight[:count]  # (B, F, dim)
        attended = None if lengths is None else valid_mask(frames, count)[:, None, None]
        for block in model.layers:
            x = block(x, attended)
        return model.layer_norm(x)

    def _log_mels(self, waveform: Tensor, mask: Tensor) -> Tensor:
        """Log-mels (B, bands, 2 F) in the encoder's scale, zero outside of the mask (B, 1, 2 F)."""
        window = torch.hann_window(400, device=waveform.device)
        spectrum = torch.stft(waveform.float(), 400, _MEL_HOP, window=window, center=False, return_complex=True)
        power = spectrum[..., : mask.shape[2]].abs().square()
        levels = (self.filters.to(power.device).T @ power).clamp(min=1e-10).log10()
        loudest = levels.masked_fill(~mask, -torch.inf).amax((1, 2), keepdim=True)
        return (((levels.maximum(loudest - 8) + 4) / 4) * mask).to(waveform.dtype)


# a family by name, and its class in transformers
FAMILIES: dict[str, tuple[type[Family], str]] = {
    "hubert": (WaveformFamily, "HubertModel"),
    "mel_hubert": (MelFamily, "HubertModel"),
    "wavlm": (WaveformFamily, "WavLMModel"),
    "wav2vec2": (WaveformFamily, "Wav2Vec2Model"),
    "wav2vec2-bert": (BertFamily, "Wav2Vec2BertModel"),
    "gemma3n_audio": (UniversalSpeechFamily, "Gemma3nAudioEncoder"),
    "whisper": (WhisperFamily, "models.whisper.modeling_whisper.WhisperEncoder"),
}


def valid_mask(lengths: Tensor, size: int) -> Tensor:
    """Make a mask (B, size), True before each length (B,)."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _clips(waveform: Tensor, lengths: Tensor | None) -> list[Any]:
    ends = [waveform.shape[1]] * len(waveform) if lengths is None else lengths.tolist()
    return [clip[:end].float().cpu().numpy() for clip, end in zip(waveform, ends, strict=True)]


def normalize_clips(waveform: Tensor, lengths: Tensor | None) -> Tensor:
    """Scale clips to zero mean and unit variance over the valid samples, with transformers' epsilon."""
    if lengths is None:
        mean, variance = waveform.mean(1, keepdim=True), waveform.var(1, keepdim=True, correction=0)
        return (waveform - mean) / (variance + 1e-7).sqrt()
    mask = valid_mask(lengths, waveform.shape[1])
    mean = waveform.sum(1, keepdim=True) / lengths[:, None]
    centred = (waveform - mean) * mask
    return centred / (centred.square().sum(1, keepdim=True) / lengths[:, None] + 1e-7).sqrt()


def _masked_group_norm(x: Tensor, norm: nn.GroupNorm, lengths: Tensor) -> Tensor:
    """Group norm over the valid frames of (B, C, F) alone, zero elsewhere; no length has to be known on the host."""
    mask = valid_mask(lengths, x.shape[2])[:, None]
    values = lengths[:, None, None] * (norm.num_channels // norm.num_groups)

    def mean(channels: Tensor) -> Tensor:
        """Means (B, C, 1) over groups, of sums over frames (B, C)."""
        sums = channels.unflatten(1, (norm.num_groups, -1)).sum(2, keepdim=True) / values
        return sums.expand(-1, -1, norm.num_channels // norm.num_groups).flatten(1)[..., None]

    centred = (x - mean((x * mask).sum(2))) * mask
    scale = (mean(centred.square().sum(2)) + norm.eps).rsqrt()
    if norm.affine:
        return torch.where(mask, centred * (scale * norm.weight[:, None]) + norm.bias[:, None], 0)
    return centred * scale
