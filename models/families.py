"""Model families of transformers and of torch.nn, each at a tiny size: a test bed of spellings. Data only; `family_build` builds.

Sizes are chosen so that nothing coincides: batch 3, length 29 (21 on the decoder's side), 4 heads of 24, 2 of them for K and V.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_fa.errors import OnnxFaError

Kind = Literal["encoder", "decoder", "encoder-decoder", "vision", "audio", "torch"]
Fill = Literal["ids", "normal", "right", "left", "corner", "drop", "documents", "ones"]
B, S, T, PAST = 3, 29, 21, 19
HIDDEN, HEADS, KV_HEADS, D, VOCAB = 96, 4, 2, 24, 101


@dataclass(frozen=True)
class Input:
    """An input by name and shape. `fill`: token ids, normal floats, an int mask of ones padded on the `right` or on the `left`
    (more in later rows), a mask of an image's upper left `corner`, a bool mask, true where a key on the right is to `drop`, ids of
    `documents` that follow each other, or floats of one but for a zero at the end of each row (`ones`)."""

    name: str
    shape: tuple[int, ...]
    fill: Fill


@dataclass(frozen=True)
class Family:
    """A model: `model` and `config` are names of transformers' classes (or `model` is "torch." and a module known to
    `family_build`), `options` the config's keywords.

    sites: attentions in it. output: the field of the result that is exported; `probabilities` adds a softmax to it, as a classifier
    does. tolerance: relative norm error allowed when its attentions are computed in another order. Inputs whose names start with
    "past" are a legacy cache, k and v by turns, and the grown cache is exported too. attns: the spellings the library has.
    """

    name: str
    kind: Kind
    model: str
    config: str
    options: dict[str, Any] = field(hash=False)
    inputs: tuple[Input, ...]
    sites: int
    attns: tuple[Literal["sdpa", "eager"], ...] = ("sdpa", "eager")
    output: str = "last_hidden_state"
    probabilities: bool = False
    tolerance: float = 1e-5
    seed: int = 0


IDS = Input("input_ids", (B, S), "ids")
PADDED = Input("attention_mask", (B, S), "right")
LEFT = Input("attention_mask", (B, S), "left")
TEXT, TEXT_LEFT = (IDS, PADDED), (IDS, LEFT)
SEQ2SEQ = (*TEXT, Input("decoder_input_ids", (B, T), "ids"), Input("decoder_attention_mask", (B, T), "right"))
EAGER: tuple[Literal["sdpa", "eager"], ...] = ("eager",)


def _step(length: int, heads: int) -> tuple[Input, ...]:
    """The inputs of a decoder that goes on for `length` tokens from a cache of two layers."""
    cache = tuple(Input(f"past_{x}{i}", (B, heads, PAST, D), "normal") for i in range(2) for x in "kv")
    return (Input("input_ids", (B, length), "ids"), Input("attention_mask", (B, PAST + length), "left"), *cache)


def _image(side: int) -> tuple[Input, ...]:
    return (Input("pixel_values", (B, 3, side, side), "normal"),)


BERT = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 112,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "n_inner": 112}
LLAMA = BERT | {"num_key_value_heads": KV_HEADS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEAD_DIM = {"head_dim": D}
MOE = {"experts_implementation": "batched_mm"}  # the other ways are loops over data, or have no ONNX
GEMMA = LLAMA | HEAD_DIM | {"query_pre_attn_scalar": 10, "sliding_window": 7}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
BART = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 112,
    "decoder_ffn_dim": 112,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "d_kv": D,
    "d_ff": 112,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
}
VIT = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 112,
    "image_size": 42,
    "patch_size": 6,
}
SWIN = {
    "image_size": 48,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 3,
    "out_features": ["stage2"],
}
WAV2VEC2 = BERT | {
    "conv_dim": [16, 32],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
}
SOUND = (Input("input_values", (B, 310), "normal"), Input("attention_mask", (B, 310), "right"))
TORCH_X = Input("x", (B, S, HIDDEN), "normal")
TORCH_DROP = Input("drop", (B, S), "drop")

_ALL = (
    # encoders
    Family("bert", "encoder", "BertModel", "BertConfig", BERT, TEXT, 2),
    Family("distilbert", "encoder", "DistilBertModel", "DistilBertConfig",
           {"vocab_size": VOCAB, "dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 112,
            "max_position_embeddings": 64}, TEXT, 2),
    Family("albert", "encoder", "AlbertModel", "AlbertConfig", BERT | {"embedding_size": 40}, TEXT, 2),
    Family("roberta", "encoder", "RobertaModel", "RobertaConfig", BERT, TEXT, 2),
    Family("electra", "encoder", "ElectraModel", "ElectraConfig", BERT | {"embedding_size": 40}, TEXT, 2),
    Family("modernbert", "encoder", "ModernBertModel", "ModernBertConfig",
           BERT | {"layer_types": ["full_attention", "sliding_attention"], "local_attention": 14, "pad_token_id": 0,
                   "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, TEXT, 2),
    Family("deberta_v2", "encoder", "DebertaV2Model", "DebertaV2Config",
           BERT | {"relative_attention": True, "position_buckets": 12, "pos_att_type": ["p2c", "c2p"],
                   "share_att_key": True, "norm_rel_ebd": "layer_norm"}, TEXT, 2, EAGER),
    Family("mpnet", "encoder", "MPNetModel", "MPNetConfig", BERT, TEXT, 2, EAGER),
    Family("roformer", "encoder", "RoFormerModel", "RoFormerConfig", BERT | {"embedding_size": 40}, TEXT, 2, EAGER),
    Family("esm", "encoder", "EsmModel", "EsmConfig",
           BERT | {"position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 3}, TEXT, 2),
    Family("bert_classifier", "encoder", "BertForSequenceClassification", "BertConfig", BERT | {"num_labels": 5},
           TEXT, 2, output="logits", probabilities=True),
    Family("deberta", "encoder", "DebertaModel", "DebertaConfig",
           BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, TEXT, 2, EAGER),
    Family("mobilebert", "encoder", "MobileBertModel", "MobileBertConfig",
           BERT | {"embedding_size": 40, "intra_bottleneck_size": HIDDEN}, TEXT, 2),
    Family("squeezebert", "encoder", "SqueezeBertModel", "SqueezeBertConfig", BERT | {"embedding_size": HIDDEN}, TEXT, 2, EAGER),
    # Two attentions in each of 2 layers: of its tokens, and in its convolution, which takes the softmax of one query's product with
    # 9 learned keys as the weights of 9 neighbouring values.
    Family("convbert", "encoder", "ConvBertModel", "ConvBertConfig",
           BERT | {"embedding_size": 40, "num_attention_heads": 8, "head_ratio": 2}, TEXT, 4, EAGER),
    Family("big_bird", "encoder", "BigBirdModel", "BigBirdConfig", BERT | {"attention_type": "original_full"}, TEXT, 2, EAGER),
    Family("xlnet", "encoder", "XLNetModel", "XLNetConfig",
           {"vocab_size": VOCAB, "d_model": HIDDEN, "n_layer": 2, "n_head": HEADS, "d_inner": 112}, TEXT, 2, EAGER),
    Family("xlm", "encoder", "XLMModel", "XLMConfig",
           {"vocab_size": VOCAB, "emb_dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "max_position_embeddings": 64}, TEXT, 2,
           EAGER),
    # decoders
    Family("gpt2", "decoder", "GPT2Model", "GPT2Config", GPT2, TEXT, 2),
    Family("gpt_neo", "decoder", "GPTNeoModel", "GPTNeoConfig",
           {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": 2, "attention_types": [[["global", "local"], 1]],
            "num_heads": HEADS, "window_size": 7, "max_position_embeddings": 64, "intermediate_size": 112}, TEXT, 2, EAGER),
    Family("gptj", "decoder", "GPTJModel", "GPTJConfig", GPT2 | {"rotary_dim": 8}, TEXT, 2, EAGER),
    Family("gpt_neox", "decoder", "GPTNeoXModel", "GPTNeoXConfig", BERT, TEXT, 2),
    Family("gpt_bigcode", "decoder", "GPTBigCodeModel", "GPTBigCodeConfig", GPT2, TEXT, 2),
    Family("opt", "decoder", "OPTModel", "OPTConfig",
           {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS, "ffn_dim": 112,
            "word_embed_proj_dim": HIDDEN, "max_position_embeddings": 64}, TEXT, 2),
    Family("llama", "decoder", "LlamaModel", "LlamaConfig", LLAMA, TEXT, 2),
    Family("llama_left", "decoder", "LlamaModel", "LlamaConfig", LLAMA, TEXT_LEFT, 2),
    Family("llama_step", "decoder", "LlamaModel", "LlamaConfig", LLAMA, _step(1, KV_HEADS), 2),
    Family("gpt2_step", "decoder", "GPT2Model", "GPT2Config", GPT2, _step(5, HEADS), 2),
    Family("mistral", "decoder", "MistralModel", "MistralConfig", LLAMA | HEAD_DIM | {"sliding_window": 7}, TEXT, 2),
    Family("mixtral", "decoder", "MixtralModel", "MixtralConfig", LLAMA | {"num_local_experts": 3} | MOE, TEXT, 2),
    Family("qwen2", "decoder", "Qwen2Model", "Qwen2Config", LLAMA, TEXT, 2),
    Family("qwen3", "decoder", "Qwen3Model", "Qwen3Config", LLAMA | HEAD_DIM, TEXT, 2),
    Family("gemma2", "decoder", "Gemma2Model", "Gemma2Config", GEMMA | ALTERNATING | {"attn_logit_softcapping": 2.0}, TEXT, 2,
           EAGER),
    Family("gemma3", "decoder", "Gemma3TextModel", "Gemma3TextConfig", GEMMA | ALTERNATING, TEXT, 2),
    Family("phi3", "decoder", "Phi3Model", "Phi3Config", LLAMA, TEXT, 2),
    Family("stablelm", "decoder", "StableLmModel", "StableLmConfig", LLAMA, TEXT, 2),
    Family("granite", "decoder", "GraniteModel", "GraniteConfig", LLAMA | {"attention_multiplier": 0.3}, TEXT, 2),
    Family("diffllama", "decoder", "DiffLlamaModel", "DiffLlamaConfig", LLAMA, TEXT, 2, EAGER),
    Family("olmo2", "decoder", "Olmo2Model", "Olmo2Config", LLAMA, TEXT, 2),
    Family("falcon_mqa", "decoder", "FalconModel", "FalconConfig",
           {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
            "multi_query": True}, TEXT, 2),
    Family("falcon_alibi", "decoder", "FalconModel", "FalconConfig",
           {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
            "multi_query": False, "alibi": True}, TEXT, 2),
    Family("bloom", "decoder", "BloomModel", "BloomConfig", {"vocab_size": VOCAB, "hidden_size": HIDDEN, "n_layer": 2,
                                                             "n_head": HEADS}, TEXT, 2, EAGER),
    Family("mpt", "decoder", "MptModel", "MptConfig", {"vocab_size": VOCAB, "d_model": HIDDEN, "n_layers": 2, "n_heads": HEADS,
                                                       "max_seq_len": 64}, TEXT, 2, EAGER),
    Family("gpt_oss", "decoder", "GptOssModel", "GptOssConfig",
           LLAMA | HEAD_DIM | ALTERNATING | {"sliding_window": 7, "num_local_experts": 3, "num_experts_per_tok": 2} | MOE, TEXT, 2,
           EAGER),
    Family("codegen", "decoder", "CodeGenModel", "CodeGenConfig", GPT2 | {"rotary_dim": 8}, TEXT, 2, EAGER),
    Family("ctrl", "decoder", "CTRLModel", "CTRLConfig",
           {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "dff": 112}, TEXT, 2, EAGER),
    Family("cohere", "decoder", "CohereModel", "CohereConfig", LLAMA | {"use_qk_norm": True}, TEXT, 2),
    # heads of 20 for Q and K, 12 of it rotated, of 16 for V
    Family("deepseek_v3", "decoder", "DeepseekV3Model", "DeepseekV3Config",
           LLAMA | MOE | {"num_key_value_heads": HEADS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                          "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
                          "moe_intermediate_size": 24, "kv_lora_rank": 40, "q_lora_rank": 44, "qk_rope_head_dim": 12,
                          "qk_nope_head_dim": 8, "v_head_dim": 16}, TEXT, 2),
    # encoder-decoders: per layer one attention in the encoder, two in the decoder
    Family("t5", "encoder-decoder", "T5Model", "T5Config", T5, SEQ2SEQ, 6),
    Family("bart", "encoder-decoder", "BartModel", "BartConfig", BART, SEQ2SEQ, 6),
    Family("mbart", "encoder-decoder", "MBartModel", "MBartConfig", BART, SEQ2SEQ, 6),
    Family("pegasus", "encoder-decoder", "PegasusModel", "PegasusConfig", BART, SEQ2SEQ, 6),
    Family("marian", "encoder-decoder", "MarianModel", "MarianConfig", BART, SEQ2SEQ, 6),
    Family("m2m_100", "encoder-decoder", "M2M100Model", "M2M100Config", BART, SEQ2SEQ, 6),
    Family("whisper", "encoder-decoder", "WhisperModel", "WhisperConfig",
           {k: v for k, v in BART.items() if k != "max_position_embeddings"}
           | {"num_mel_bins": 20, "max_source_positions": S, "max_target_positions": 64},
           (Input("input_features", (B, 20, 2 * S), "normal"), *SEQ2SEQ[2:]), 6),
    Family("prophetnet", "encoder-decoder", "ProphetNetModel", "ProphetNetConfig",
           {"vocab_size": VOCAB, "hidden_size": HIDDEN, "encoder_ffn_dim": 112, "decoder_ffn_dim": 112, "num_encoder_layers": 2,
            "num_decoder_layers": 2, "num_encoder_attention_heads": HEADS, "num_decoder_attention_heads": HEADS,
            "max_position_embeddings": 64}, SEQ2SEQ, 8, EAGER),
    # vision
    Family("vit", "vision", "ViTModel", "ViTConfig", VIT, _image(42), 2),
    Family("deit", "vision", "DeiTModel", "DeiTConfig", VIT, _image(42), 2),
    Family("dinov2", "vision", "Dinov2Model", "Dinov2Config", VIT, _image(42), 2),
    Family("beit", "vision", "BeitModel", "BeitConfig", VIT | {"use_relative_position_bias": True}, _image(42), 2),
    Family("yolos", "vision", "YolosModel", "YolosConfig",
           VIT | {"image_size": [42, 42], "num_detection_tokens": 5}, _image(42), 2),
    Family("clip_text", "vision", "CLIPTextModel", "CLIPTextConfig",
           BERT | {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}, TEXT, 2),
    Family("clip_vision", "vision", "CLIPVisionModel", "CLIPVisionConfig", VIT, _image(42), 2),
    Family("siglip_text", "vision", "SiglipTextModel", "SiglipTextConfig", BERT, TEXT, 2),
    # its pooling head is a third attention, from one learnt query
    Family("siglip_vision", "vision", "SiglipVisionModel", "SiglipVisionConfig", VIT, _image(42), 3, output="pooler_output"),
    Family("swin", "vision", "SwinModel", "SwinConfig", SWIN, _image(48), 4),
    Family("swinv2", "vision", "Swinv2Model", "Swinv2Config", SWIN, _image(48), 4, EAGER),
    Family("segformer", "vision", "SegformerModel", "SegformerConfig",
           {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [32, 48], "patch_sizes": [7, 3],
            "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2]}, _image(40), 2),
    Family("detr", "vision", "DetrModel", "DetrConfig",
           {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
            "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                                "layer_type": "basic", "out_features": ["stage2"]},
            "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS, "encoder_ffn_dim": 112, "decoder_ffn_dim": 112, "num_queries": 11},
           (*_image(48), Input("pixel_mask", (B, 48, 48), "corner")), 6),
    Family("sam_vision", "vision", "SamVisionModel", "SamVisionConfig",
           {"hidden_size": HIDDEN, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "image_size": 40,
            "patch_size": 4, "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 112, "num_pos_feats": 8}, _image(40), 2),
    Family("pvt", "vision", "PvtModel", "PvtConfig",
           {"image_size": 48, "num_encoder_blocks": 2, "depths": [1, 1], "sequence_reduction_ratios": [2, 1],
            "hidden_sizes": [32, 48], "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2]}, _image(48), 2, EAGER),
    Family("videomae", "vision", "VideoMAEModel", "VideoMAEConfig",
           VIT | {"num_frames": 4, "image_size": 18}, (Input("pixel_values", (B, 4, 3, 18, 18), "normal"),), 2),
    # after each stage an attention that shrinks
    Family("levit", "vision", "LevitModel", "LevitConfig",
           {"image_size": 96, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
            "key_dim": [8, 8, 8], "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]]}, _image(96), 5,
           EAGER),
    # audio
    Family("wav2vec2", "audio", "Wav2Vec2Model", "Wav2Vec2Config", WAV2VEC2, SOUND, 2),
    Family("hubert", "audio", "HubertModel", "HubertConfig", WAV2VEC2, SOUND, 2),
    Family("wavlm", "audio", "WavLMModel", "WavLMConfig", WAV2VEC2 | {"num_buckets": 12, "max_bucket_distance": 20}, SOUND, 2,
           EAGER),
    Family("wav2vec2_conformer", "audio", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig",
           WAV2VEC2 | {"position_embeddings_type": "relative"}, SOUND, 2, EAGER),
    # torch.nn
    Family("torch_mha", "torch", "torch.mha", "", {}, (TORCH_X,), 1, ("sdpa",)),
    Family("torch_mha_padded", "torch", "torch.mha", "", {}, (TORCH_X, TORCH_DROP), 1, ("sdpa",)),
    Family("torch_encoder", "torch", "torch.encoder", "", {}, (TORCH_X, TORCH_DROP), 2, ("sdpa",)),
    Family("torch_transformer", "torch", "torch.transformer", "", {},
           (TORCH_X, Input("y", (B, T, HIDDEN), "normal"), TORCH_DROP), 6, ("sdpa",)),
)  # fmt: skip
FAMILIES: dict[str, Family] = {f.name: f for f in _ALL}


def find(name: str) -> Family:
    """The family of that name. Raises OnnxFaError naming the known ones."""
    if name not in FAMILIES:
        raise OnnxFaError(f"no family {name!r}: use one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
