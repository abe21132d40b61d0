"""torchaudio: wav2vec 2.0, WavLM, Conformer, Emformer (whole, and one segment), the local attention of Hybrid Demucs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Module, cases_of
from corpus.torch_setup import without_compiled_torchaudio

WIDTH, HEADS, LAYERS = 48, 4, 2
without_compiled_torchaudio()


class Streamed(torch.nn.Module):
    """Emformer's next segment: what it keeps of those before comes in and goes out."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, segment: torch.Tensor, lengths: torch.Tensor, *flat: torch.Tensor) -> Any:
        states = [list(flat[at : at + 4]) for at in range(0, len(flat), 4)]
        return self.module.infer(segment, lengths, states)


class Padded(torch.nn.Module):
    """A model that needs a sound of the whole length in its batch: it is put in front."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> Any:
        first = torch.full((1,), frames.shape[1], dtype=lengths.dtype)
        return self.module(torch.cat([frames[:1], frames]), torch.cat([first, lengths.clamp(max=frames.shape[1])]))


class Sound(torch.nn.Module):
    """The features of a model of speech."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, sound: torch.Tensor, *lengths: torch.Tensor) -> Any:
        return self.module(sound, *lengths)


def speech(name: str, first: bool, **more: Any) -> Any:
    """wav2vec 2.0 or WavLM. `first`: the norm stands before the attention."""
    from torchaudio import models

    return Sound(
        getattr(models, name)(
            extractor_mode="layer_norm" if first else "group_norm",
            extractor_conv_layer_config=[(16, 10, 5), (16, 3, 2)],
            extractor_conv_bias=False,
            encoder_embed_dim=WIDTH,
            encoder_projection_dropout=0.0,
            encoder_pos_conv_kernel=16,
            encoder_pos_conv_groups=4,
            encoder_num_layers=LAYERS,
            encoder_num_heads=HEADS,
            encoder_attention_dropout=0.0,
            encoder_ff_interm_features=64,
            encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.0,
            encoder_layer_norm_first=first,
            encoder_layer_drop=0.0,
            aux_num_out=8,
            **more,
        )
    )


def conformer(first: bool) -> Any:
    from torchaudio.models import Conformer

    return Padded(Conformer(WIDTH, HEADS, 64, LAYERS, 7, convolution_first=first))


def emformer(memory: int, streamed: bool) -> Any:
    from torchaudio.models import Emformer

    made = Emformer(WIDTH, HEADS, 64, LAYERS, 4, left_context_length=6, right_context_length=2, max_memory_size=memory)
    return Streamed(made) if streamed else made


def local_state(heads: int, decays: int) -> Any:
    from torchaudio.models._hdemucs import _LocalState

    return _LocalState(WIDTH, heads=heads, ndecay=decays)


def cases() -> Iterator[Case]:
    sound = {"sound": (2, 310)}
    timed: dict[str, dict[int, str]] = {"sound": {0: "batch", 1: "samples"}}
    runs = (Run("sound", sizes={"samples": 310}), Run("short", batch=1, sizes={"samples": 255}))
    lengths = {"lengths": torch.int64}
    modules = []
    for first in (False, True):
        way = "-norm-first" if first else ""
        modules += [
            Module(
                f"wav2vec2{way}", partial(speech, "wav2vec2_model", first), sound, axes=timed, runs=runs, exporters=BOTH
            ),
            Module(
                f"wav2vec2-lengths{way}",
                partial(speech, "wav2vec2_model", first),
                sound | {"lengths": (2,)},
                types=lengths,
                axes={"sound": {0: "batch"}, "lengths": {0: "batch"}},
            ),
            Module(
                f"wavlm{way}",
                partial(speech, "wavlm_model", first, encoder_num_buckets=8, encoder_max_distance=20),
                sound,
                axes=timed,
                runs=runs,
            ),
            Module(
                f"conformer{way}",
                partial(conformer, first),
                {"frames": (2, 60, WIDTH), "lengths": (2,)},
                types=lengths,
                axes={"frames": {0: "batch"}, "lengths": {0: "batch"}},
            ),
        ]
    state = [(3, 2, WIDTH), (6, 2, WIDTH), (6, 2, WIDTH), (1, 2)]
    states = {f"state_{layer}_{part}": shape for layer in range(LAYERS) for part, shape in enumerate(state)}
    past = {name: torch.int32 for name, shape in states.items() if len(shape) == 2}
    for memory in (0, 3):
        way = "-memory" if memory else ""
        modules.append(
            Module(
                f"emformer{way}",
                partial(emformer, memory, False),
                {"frames": (2, 14, WIDTH), "lengths": (2,)},
                types=lengths,
                axes={"frames": {0: "batch"}, "lengths": {0: "batch"}},
                exporters=BOTH,
            )
        )
    modules += [
        Module(
            "emformer-streamed",
            partial(emformer, 3, True),
            {"frames": (2, 6, WIDTH), "lengths": (2,), **states},
            types=lengths | past,
            axes={"frames": {}},
        ),
        *(
            Module(
                f"demucs-{heads}-heads-{decays}-decays",
                partial(local_state, heads, decays),
                {"x": (2, WIDTH, 17)},
                axes={"x": {0: "batch", 2: "length"}},
                runs=(Run("long", length=23), Run("one", batch=1)),
                exporters=BOTH,
            )
            for heads, decays in ((4, 4), (4, 0), (1, 2))
        ),
    ]
    return cases_of(modules)
