"""GLiNER: named entities by its own export, around encoders of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import corpus.torch_setup  # noqa: F401
from corpus.case import Case, Made

TEXT = "The cat sat near Berlin with Ada ."
WORDS = "[UNK] [PAD] [CLS] [SEP] [MASK] [FLERT] <<ENT>> <<SEP>> the cat sat near berlin with ada . person city".split()
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    | {"norm_rel_ebd": "layer_norm", "share_att_key": True, "max_relative_positions": 32},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3},
}
BASE: dict[str, Any] = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
BASE |= {"intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": 1}


def tokenizer() -> Any:
    """Words of a text by their number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    fast.add_special_tokens({"additional_special_tokens": ["<<ENT>>", "<<SEP>>"]})
    return fast


def model(kind: str, encoder: str) -> Any:
    """A recogniser with random weights."""
    import gliner.config
    import gliner.model

    torch.manual_seed(0)
    inner = BASE | ENCODERS[encoder] | {"model_type": encoder}
    more = {"encoder_config": inner, "vocab_size": BASE["vocab_size"], "hidden_size": 32, "max_width": 4}
    more |= {
        "class_token_index": 6,
        "dropout": 0.0,
        "embed_ent_token": True,
        "ent_token": "<<ENT>>",
        "sep_token": "<<SEP>>",
    }
    config = getattr(gliner.config, f"{kind}Config")(model_name=encoder, **more)
    return getattr(gliner.model, f"{kind}GLiNER")(config, tokenizer=tokenizer(), backbone_from_pretrained=False)


def build(name: str, kind: str, encoder: str, opset: int, folder: Path) -> Iterable[Made]:
    made = model(kind, encoder).eval()
    path = Path(made.export_to_onnx(folder, opset=opset)["onnx_path"])
    names = {value.name for value in onnx.load(path).graph.input}
    batches = {"text": made._build_dummy_batch(text=TEXT), "texts": made._build_dummy_batch(text=[TEXT, "Ada sat ."])}
    runs = {run: {key: np.asarray(batch[key]) for key in names} for run, batch in batches.items()}
    yield Made(name, path, 2, "2 layers of the encoder", runs)


def cases() -> Iterator[Case]:
    for kind in ("Span", "Token"):
        for encoder in ENCODERS:
            for opset in (14, 19):
                name = f"{kind.lower()}-{encoder}-opset{opset}"
                yield Case(name, partial(build, name, f"UniEncoder{kind}", encoder, opset))
