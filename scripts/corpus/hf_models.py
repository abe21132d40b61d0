"""Tiny configurations of transformers' models, with their attentions: what optimum, TorchScript and others export.

Sizes are chosen so that little coincides: 4 heads of 12, 2 of them for keys and values where a model shares them, 2 layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["encoder", "decoder", "seq2seq", "vision", "clip", "speech"]


@dataclass(frozen=True)
class Tiny:
    """A model type of transformers (as AutoConfig knows it), its options, and its attentions: of the one stack there is, or of the
    encoder, with `decoder` for those of a decoder (cross attention included). `auto` is the AutoModel class that makes it."""

    model_type: str
    kind: Kind
    attentions: int
    options: dict[str, Any] = field(hash=False)
    decoder: int = 0
    auto: str = "AutoModel"
    why: str = ""


BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = BASE | {"num_key_value_heads": 2}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
VIT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
TOWER = {key: value for key, value in VIT.items() if key not in ("image_size", "patch_size")}
CLIP: dict[str, Any] = {
    "text_config": TOWER | {"vocab_size": 96, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1},
    "vision_config": VIT,
    "projection_dim": 24,
}
WAV2VEC2 = BASE | {
    "conv_dim": [16, 32],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}
WHISPER = SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 1500, "max_target_positions": 40}
TWO_STACKS = "2 layers in the encoder; 2 in the decoder, each with self and cross attention"


def _encoder(model_type: str, **more: Any) -> Tiny:
    return Tiny(model_type, "encoder", 2, BASE | more)


def _decoder(model_type: str, options: dict[str, Any] | None = None, **more: Any) -> Tiny:
    return Tiny(model_type, "decoder", 2, (LLAMA if options is None else options) | more, auto="AutoModelForCausalLM")


def _seq2seq(model_type: str, options: dict[str, Any] | None = None, **more: Any) -> Tiny:
    chosen = (SEQ2SEQ if options is None else options) | more
    return Tiny(model_type, "seq2seq", 2, chosen, 4, "AutoModelForSeq2SeqLM", TWO_STACKS)


ENCODERS = (
    _encoder("bert"),
    _encoder("albert", embedding_size=16),
    _encoder("electra", embedding_size=16),
    _encoder("roberta", pad_token_id=1),
    _encoder("xlm-roberta", pad_token_id=1),
    _encoder("camembert", pad_token_id=1),
    _encoder("mpnet"),
    _encoder("roformer", embedding_size=48),
    _encoder("convbert", embedding_size=16, head_ratio=2, num_groups=1),
    _encoder("mobilebert", embedding_size=16, intra_bottleneck_size=24, num_feedforward_networks=1),
    _encoder("ibert", pad_token_id=1),
    _encoder("layoutlm"),
    _encoder("modernbert", global_attn_every_n_layers=2, local_attention=8, cls_token_id=1, sep_token_id=2),
    _encoder("squeezebert", embedding_size=48, q_groups=1, k_groups=1, v_groups=1),
    _encoder("rembert", input_embedding_size=16, output_embedding_size=16),
    Tiny(
        "distilbert",
        "encoder",
        2,
        {"vocab_size": 96, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    Tiny(
        "xlm",
        "encoder",
        2,
        {"vocab_size": 96, "emb_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    Tiny(
        "flaubert",
        "encoder",
        2,
        {"vocab_size": 96, "emb_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    _encoder("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
    _encoder(
        "deberta-v2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        max_relative_positions=32,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
    ),
    _encoder("data2vec-text", pad_token_id=1),
    _encoder("splinter"),
    Tiny("esm", "encoder", 2, BASE | {"pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"}),
)
DECODERS = (
    _decoder("gpt2", GPT2),
    _decoder(
        "gpt_neo",
        BASE | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    _decoder("gptj", GPT2 | {"rotary_dim": 8}),
    _decoder("gpt_neox", BASE, rotary_pct=0.5),
    _decoder("codegen", GPT2 | {"rotary_dim": 8}),
    _decoder("opt", BASE | {"ffn_dim": 64, "word_embed_proj_dim": 48}),
    _decoder("bloom", {"vocab_size": 96, "hidden_size": 48, "n_layer": 2, "n_head": 4, "pad_token_id": 0}),
    _decoder("llama"),
    _decoder("mistral", sliding_window=8),
    _decoder("qwen2"),
    _decoder("qwen3", head_dim=12),
    _decoder("phi", BASE, partial_rotary_factor=0.5),
    _decoder("phi3"),
    _decoder("gemma", head_dim=16),
    _decoder("gemma2", head_dim=16, query_pre_attn_scalar=16, sliding_window=8),
    _decoder("gemma3_text", head_dim=16, query_pre_attn_scalar=16, sliding_window=8),
    _decoder("falcon", {**BASE, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}),
    _decoder("mpt", {"vocab_size": 96, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    _decoder("gpt_bigcode", GPT2 | {"multi_query": True}),
    _decoder("stablelm", partial_rotary_factor=0.5),
    _decoder("granite"),
    _decoder("olmo"),
    _decoder("olmo2"),
    _decoder("cohere"),
    _decoder("starcoder2", sliding_window=8),
    _decoder("smollm3"),
    _decoder("helium", head_dim=12),
)
SEQ2SEQS = (
    _seq2seq("t5", T5),
    _seq2seq("mt5", T5),
    _seq2seq("umt5", T5),
    _seq2seq("longt5", T5 | {"local_radius": 8, "encoder_attention_type": "local"}),
    _seq2seq("bart"),
    _seq2seq("mbart"),
    _seq2seq("marian"),
    _seq2seq("pegasus"),
    _seq2seq("m2m_100"),
    _seq2seq("blenderbot"),
    _seq2seq("blenderbot-small"),
)
VISION = (
    Tiny("vit", "vision", 2, VIT),
    Tiny("deit", "vision", 2, VIT),
    Tiny("beit", "vision", 2, VIT | {"use_relative_position_bias": True, "use_mask_token": False}),
    Tiny("data2vec-vision", "vision", 2, VIT | {"use_shared_relative_position_bias": True}),
    Tiny("swin", "vision", 4, SWIN, why="2 stages of 2 blocks, one window attention each"),
    Tiny("swinv2", "vision", 4, SWIN, why="2 stages of 2 blocks, one window attention each (cosine)"),
    Tiny("dinov2", "vision", 2, VIT | {"mlp_ratio": 2}),
    Tiny("vit_msn", "vision", 2, VIT),
    Tiny("vit_mae", "vision", 2, VIT | {"mask_ratio": 0.0}),
    Tiny("yolos", "vision", 2, VIT | {"image_size": [32, 32], "num_detection_tokens": 5}),
    Tiny(
        "segformer",
        "vision",
        4,
        {
            "num_encoder_blocks": 2,
            "depths": [2, 2],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        why="2 stages of 2 blocks, one attention each (keys of a smaller image)",
    ),
)
CLIPS = (
    Tiny("clip", "clip", 4, CLIP, why="2 layers of text, 2 of vision"),
    Tiny("siglip", "clip", 5, CLIP, why="2 layers of text, 2 of vision, and the vision head's attention pooling"),
    Tiny("chinese_clip", "clip", 4, CLIP, why="2 layers of text, 2 of vision"),
)
SPEECH = (
    Tiny("wav2vec2", "speech", 2, WAV2VEC2),
    Tiny("hubert", "speech", 2, WAV2VEC2),
    Tiny("wavlm", "speech", 2, WAV2VEC2 | {"num_buckets": 8, "max_bucket_distance": 20}),
)
WHISPERS = (Tiny("whisper", "speech", 2, WHISPER, 4, "AutoModelForSpeechSeq2Seq", TWO_STACKS),)
ALL = (*ENCODERS, *DECODERS, *SEQ2SEQS, *VISION, *CLIPS, *SPEECH, *WHISPERS)


def find(model_type: str) -> Tiny:
    """The configuration of that model type. Raises KeyError."""
    return {tiny.model_type: tiny for tiny in ALL}[model_type]


def make(tiny: Tiny, auto: str = "", **more: Any) -> Any:
    """The model with random weights of seed 0, in evaluation. `auto`: another AutoModel class; `more`: further options."""
    import torch
    import transformers

    import corpus.torch_setup  # noqa: F401

    torch.manual_seed(0)
    attention = more.pop("attn_implementation", None)
    config = transformers.AutoConfig.for_model(tiny.model_type, **(tiny.options | more))
    how = {} if attention is None else {"attn_implementation": attention}
    model = getattr(transformers, auto or tiny.auto).from_config(config, **how)
    return model.float().eval()
