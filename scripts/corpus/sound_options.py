"""Tiny sizes of transformers' models of speech and sound."""

from __future__ import annotations

from corpus.hf_models import BASE, SEQ2SEQ, WAV2VEC2

CONFORMER = {"conv_depthwise_kernel_size": 7, "max_source_positions": 64}
SEW = {"conv_dim": [16, 32], "conv_stride": [5, 2], "conv_kernel": [10, 3], "squeeze_factor": 2}
BERT_LIKE = CONFORMER | {"feature_projection_input_dim": 20, "left_max_position_embeddings": 6}
SPEECHT5 = WAV2VEC2 | SEQ2SEQ | {"num_mel_bins": 8, "encoder_max_relative_position": 6, "max_text_positions": 40}
SPEECHT5 |= {"speaker_embedding_dim": 16, "speech_decoder_prenet_units": 16, "max_speech_positions": 60}
SEAMLESS = {"hidden_size": 48, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4}
SEAMLESS |= {"speech_encoder_intermediate_size": 64, "feature_projection_input_dim": 20, "adaptor_stride": 2}
SEAMLESS |= {"adaptor_kernel_size": 2, "conv_depthwise_kernel_size": 7, "max_source_positions": 64}
SEAMLESS |= {"vocab_size": 96, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SEAMLESS |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "t2u_vocab_size": 96}
CHUNKED = {"speech_encoder_chunk_size": 8, "speech_encoder_left_chunk_num": 1, "left_max_position_embeddings": 6}
CLAP_TEXT = BASE | {"pad_token_id": 1}
CLAP_AUDIO = {"window_size": 4, "num_mel_bins": 16, "spec_size": 64, "hidden_size": 48, "depths": [2, 2]}
CLAP_AUDIO |= {"num_attention_heads": [2, 4], "patch_embeds_hidden_size": 24, "num_hidden_layers": 2}
AST = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "patch_size": 8}
AST |= {"max_length": 32, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4}
MOONSHINE = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "max_position_embeddings": 64}
MOONSHINE |= {f"{side}_num_hidden_layers": 2 for side in ("encoder", "decoder")}
MOONSHINE |= {f"{side}_num_{heads}_heads": 4 for side in ("encoder", "decoder") for heads in ("attention", "key_value")}
STREAMED = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
STREAMED |= {
    "num_key_value_heads": 4,
    "sliding_windows": [[5, 2], [5, 0]],
    "max_position_embeddings": 64,
    "head_dim": 12,
}
LLM = BASE | {"num_key_value_heads": 2, "head_dim": 12}
MUSIC = BASE | {"ffn_dim": 64, "num_codebooks": 2, "bos_token_id": 96, "pad_token_id": 96, "eos_token_id": None}
BARK = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "block_size": 64, "input_vocab_size": 96}
BARK |= {"output_vocab_size": 96}
FINE = BARK | {"n_codes_total": 4, "n_codes_given": 1}
MIMI = BASE | {"num_key_value_heads": 4, "head_dim": 12, "sliding_window": 5, "hidden_size": 48, "use_cache": False}
GRANITE = {"input_dim": 20, "num_layers": 2, "hidden_dim": 48, "num_heads": 4, "dim_head": 12, "output_dim": 16}
GRANITE |= {"context_size": 8, "max_pos_emb": 16, "conv_kernel_size": 7}
PARAKEET = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
PARAKEET |= {"intermediate_size": 64, "num_mel_bins": 20, "subsampling_conv_channels": 8, "conv_kernel_size": 5}
PARAKEET |= {"subsampling_factor": 4, "max_position_embeddings": 64}
LASR = PARAKEET | {"subsampling_conv_kernel_size": 3, "head_dim": 12}
LASR = {key: value for key, value in LASR.items() if key != "subsampling_factor"}
DIA_ENCODER = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4}
DIA_ENCODER |= {"head_dim": 12, "intermediate_size": 64, "vocab_size": 96}
DIA_DECODER = DIA_ENCODER | {"num_key_value_heads": 2, "cross_num_attention_heads": 4, "cross_head_dim": 12}
DIA_DECODER |= {"cross_num_key_value_heads": 4, "cross_hidden_size": 48, "num_channels": 2, "pad_token_id": 1}
DIA_DECODER |= {"eos_token_id": 2, "bos_token_id": 3}
VITS = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "window_size": 3}
VITS |= {"ffn_dim": 64, "flow_size": 48}
HEARD = SEQ2SEQ | {"input_feat_per_channel": 20, "conv_channels": 32, "max_source_positions": 64}
HEARD |= {"max_target_positions": 40, "num_mel_bins": 20}
PHI4 = {"hidden_size": 48, "intermediate_size": 64, "num_blocks": 2, "num_attention_heads": 4, "input_size": 20}
PHI4 |= {"ext_pw_out_channel": 48, "depthwise_separable_out_channel": 48, "nemo_conv_channels": 48}
PHI4 |= {"time_reduction": 4, "bias_max_distance": 6, "nemo_final_size": 5}
GEMMA = {"input_feat_size": 16, "hidden_size": 48, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2}
GEMMA |= {"conf_attention_chunk_size": 4, "conf_attention_context_left": 5, "conf_attention_context_right": 2}
GEMMA |= {"conf_reduction_factor": 2, "sscp_conv_channel_size": [8, 4], "conf_conv_kernel_size": 3, "vocab_size": 16}
