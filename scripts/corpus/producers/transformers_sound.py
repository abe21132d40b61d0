"""transformers' models of speech and sound: encoders of samples and of spectrograms, decoders, codecs, text to speech."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corpus import sound_options as sizes
from corpus.case import Case
from corpus.hf_models import BASE, WAV2VEC2
from corpus.transformers_classes import Model, cases_of

KEPT = "attention_mask"
SOUND, SOUND_AXES = {"input_values": (2, 310)}, {"input_values": {0: "batch", 1: "samples"}}
PADDED = SOUND | {KEPT: (2, 310)}
PADDED_AXES = SOUND_AXES | {KEPT: {0: "batch", 1: "samples"}}
FRAMES, FRAMES_AXES = {"input_features": (2, 40, 20)}, {"input_features": {0: "batch", 1: "frames"}}
PADDED_FRAMES = FRAMES | {KEPT: (2, 40)}
PADDED_FRAMES_AXES = FRAMES_AXES | {KEPT: {0: "batch", 1: "frames"}}
TEXT, TEXT_AXES = (
    {"input_ids": (2, 9), KEPT: (2, 9)},
    {"input_ids": {0: "batch", 1: "text"}, KEPT: {0: "batch", 1: "text"}},
)
TARGET, TARGET_AXES = {"decoder_input_ids": (2, 5)}, {"decoder_input_ids": {0: "batch", 1: "tokens"}}
UNTRACED = ("", "-eager")


def from_frames(model: Any, frames: Any) -> Any:
    return model(frames)[0]


def from_padded(model: Any, frames: Any, kept: Any) -> Any:
    return model(frames, attention_mask=kept.long())[0]


def from_states(model: Any, states: Any) -> Any:
    return model(inputs_embeds=states, use_cache=False)[0]


def from_hidden(model: Any, states: Any) -> Any:
    return model(states)[0]


def text(model: Any, ids: Any, kept: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long())[0]


def text_once(model: Any, ids: Any, kept: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long(), use_cache=False)[0]


def heard(model: Any, frames: Any, kept: Any, ids: Any) -> Any:
    return model(frames, attention_mask=kept.long(), decoder_input_ids=ids, use_cache=False)[0]


def behind(model: Any, sound: Any, ids: Any) -> Any:
    return model(sound, decoder_input_ids=ids, use_cache=False)[0]


def translated(model: Any, ids: Any, kept: Any, target: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long(), decoder_input_ids=target, use_cache=False)[0]


def prior(model: Any, ids: Any, kept: Any) -> Any:
    """VITS' text encoder, whose padding is one more axis."""
    return model(input_ids=ids, padding_mask=kept.float()[..., None], attention_mask=kept.long())[0]


def chunked(model: Any, frames: Any, kept: Any) -> Any:
    """Gemma's encoder of sound takes what is padding."""
    return model(frames, ~kept)[0]


def fine(model: Any, ids: Any) -> Any:
    return model(2, input_ids=ids)[0]


def codes(model: Any, ids: Any, first: Any) -> Any:
    return model(input_ids=ids, backbone_last_hidden_state=first, use_cache=False)[0]


STATES, STATES_AXES = {"states": (2, 12, 48)}, {"states": {0: "batch", 1: "frames"}}
MEL = {"mel": (2, 20, 40)}


def models() -> Iterator[Model]:
    for name, module, config in (
        ("wav2vec2", "wav2vec2", "Wav2Vec2"),
        ("hubert", "hubert", "Hubert"),
        ("unispeech", "unispeech", "UniSpeech"),
        ("unispeech_sat", "unispeech_sat", "UniSpeechSat"),
        ("data2vec_audio", "data2vec", "Data2VecAudio"),
        ("sew", "sew", "SEW"),
        ("wavlm", "wavlm", "WavLM"),
        ("sew_d", "sew_d", "SEWD"),
    ):
        where = "data2vec_audio" if module == "data2vec" else module
        options = WAV2VEC2 | (sizes.SEW if module.startswith("sew") else {})
        options |= {"num_buckets": 8, "max_bucket_distance": 20} if name == "wavlm" else {}
        options |= {"position_buckets": 8, "max_position_embeddings": 32} if name == "sew_d" else {}
        yield Model(
            name,
            f"{module}.modeling_{where}",
            f"{config}Model",
            f"{config}Config",
            options,
            from_padded,
            PADDED,
            PADDED_AXES,
        )
    for kind in ("relative", "rotary"):
        yield Model(
            f"wav2vec2_conformer-{kind}",
            "wav2vec2_conformer",
            "Wav2Vec2ConformerModel",
            "Wav2Vec2ConformerConfig",
            WAV2VEC2 | sizes.CONFORMER | {"position_embeddings_type": kind},
            from_padded,
            PADDED,
            PADDED_AXES,
        )
    for kind in ("relative_key", "relative", "rotary"):
        yield Model(
            f"wav2vec2_bert-{kind}",
            "wav2vec2_bert",
            "Wav2Vec2BertModel",
            "Wav2Vec2BertConfig",
            WAV2VEC2 | sizes.BERT_LIKE | {"position_embeddings_type": kind},
            from_padded,
            PADDED_FRAMES,
            PADDED_FRAMES_AXES,
        )
    yield Model(
        "speecht5-sound",
        "speecht5",
        "SpeechT5EncoderWithSpeechPrenet",
        "SpeechT5Config",
        sizes.SPEECHT5,
        from_padded,
        PADDED,
        PADDED_AXES,
    )
    yield Model(
        "speecht5-text",
        "speecht5",
        "SpeechT5EncoderWithTextPrenet",
        "SpeechT5Config",
        sizes.SPEECHT5,
        from_padded,
        TEXT,
        TEXT_AXES,
    )
    yield Model(
        "speecht5-heard",
        "speecht5",
        "SpeechT5ForSpeechToText",
        "SpeechT5Config",
        sizes.SPEECHT5,
        heard,
        PADDED | TARGET,
        PADDED_AXES | TARGET_AXES,
    )
    for kind in ("relative", "rotary"):
        yield Model(
            f"seamless-{kind}",
            "seamless_m4t",
            "SeamlessM4TSpeechEncoder",
            "SeamlessM4TConfig",
            sizes.SEAMLESS | {"position_embeddings_type": kind},
            from_padded,
            PADDED_FRAMES,
            PADDED_FRAMES_AXES,
        )
    yield Model(
        "seamless_v2",
        "seamless_m4t_v2",
        "SeamlessM4Tv2SpeechEncoder",
        "SeamlessM4Tv2Config",
        sizes.SEAMLESS | sizes.CHUNKED,
        from_padded,
        PADDED_FRAMES,
        PADDED_FRAMES_AXES,
    )
    yield Model(
        "seamless-text",
        "seamless_m4t",
        "SeamlessM4TForTextToText",
        "SeamlessM4TConfig",
        sizes.SEAMLESS,
        translated,
        TEXT | TARGET,
        TEXT_AXES | TARGET_AXES,
    )
    yield Model(
        "clap-sound",
        "clap",
        "ClapAudioModel",
        "ClapAudioConfig",
        sizes.CLAP_AUDIO,
        from_frames,
        {"mel": (2, 1, 60, 16)},
        {"mel": {0: "batch"}},
    )
    yield Model("clap-text", "clap", "ClapTextModel", "ClapTextConfig", sizes.CLAP_TEXT, text, TEXT, TEXT_AXES)
    yield Model(
        "ast",
        "audio_spectrogram_transformer",
        "ASTModel",
        "ASTConfig",
        sizes.AST,
        from_frames,
        {"mel": (2, 32, 16)},
        {"mel": {0: "batch"}},
    )
    yield Model(
        "moonshine",
        "moonshine",
        "MoonshineModel",
        "MoonshineConfig",
        sizes.MOONSHINE,
        behind,
        {"input_values": (2, 2400)} | TARGET,
        SOUND_AXES | TARGET_AXES,
        lacking=UNTRACED,
    )
    yield Model(
        "moonshine_streaming",
        "moonshine_streaming",
        "MoonshineStreamingEncoder",
        "MoonshineStreamingEncoderConfig",
        sizes.STREAMED,
        from_padded,
        {"input_values": (2, 2400), KEPT: (2, 2400)},
        PADDED_AXES,
        lacking=UNTRACED,
    )
    yield Model(
        "musicgen",
        "musicgen",
        "MusicgenForCausalLM",
        "MusicgenDecoderConfig",
        sizes.MUSIC,
        lambda m, ids: m(input_ids=ids, use_cache=False)[0],
        {"ids": (4, 7)},
        {"ids": {1: "tokens"}},
    )
    yield Model("bark", "bark", "BarkSemanticModel", "BarkSemanticConfig", sizes.BARK, text_once, TEXT, TEXT_AXES)
    yield Model(
        "bark-fine",
        "bark",
        "BarkFineModel",
        "BarkFineConfig",
        sizes.FINE,
        fine,
        {"ids": (2, 7, 4)},
        {"ids": {0: "batch", 1: "tokens"}},
    )
    yield Model(
        "mimi",
        "mimi",
        "MimiTransformerModel",
        "MimiConfig",
        sizes.MIMI,
        from_hidden,
        STATES,
        STATES_AXES,
        lacking=("-eager",),
    )
    yield Model(
        "granite_speech",
        "granite_speech",
        "GraniteSpeechCTCEncoder",
        "GraniteSpeechEncoderConfig",
        sizes.GRANITE,
        from_frames,
        FRAMES,
        FRAMES_AXES,
        2,
        "one in each of 2 layers; another softmax is of the letters' logits",
    )
    yield Model(
        "parakeet",
        "parakeet",
        "ParakeetEncoder",
        "ParakeetEncoderConfig",
        sizes.PARAKEET,
        from_padded,
        PADDED_FRAMES,
        PADDED_FRAMES_AXES,
    )
    yield Model(
        "lasr", "lasr", "LasrEncoder", "LasrEncoderConfig", sizes.LASR, from_padded, PADDED_FRAMES, PADDED_FRAMES_AXES
    )
    yield Model(
        "dia",
        "dia",
        "DiaModel",
        "DiaConfig",
        {"encoder_config": sizes.DIA_ENCODER, "decoder_config": sizes.DIA_DECODER, "delay_pattern": [0, 1]},
        translated,
        TEXT | {"target": (2, 5, 2)},
        TEXT_AXES | {"target": {0: "batch", 1: "tokens"}},
    )
    yield Model(
        "kyutai",
        "kyutai_speech_to_text",
        "KyutaiSpeechToTextModel",
        "KyutaiSpeechToTextConfig",
        sizes.LLM
        | {
            "ffn_dim": 64,
            "sliding_window": 5,
            "num_codebooks": 2,
            "codebook_vocab_size": 32,
            "audio_pad_token_id": 90,
            "codec_config": None,
        },
        from_states,
        STATES,
        STATES_AXES,
        lacking=UNTRACED,
    )
    yield Model(
        "csm",
        "csm",
        "CsmBackboneModel",
        "CsmConfig",
        sizes.LLM
        | {
            "num_codebooks": 2,
            "text_vocab_size": 96,
            "audio_token_id": 5,
            "audio_eos_token_id": 6,
            "codebook_pad_token_id": 7,
        },
        from_states,
        STATES,
        STATES_AXES,
        lacking=UNTRACED,
    )
    yield Model("vits", "vits", "VitsTextEncoder", "VitsConfig", sizes.VITS, prior, TEXT, TEXT_AXES)
    yield Model(
        "speech_to_text",
        "speech_to_text",
        "Speech2TextModel",
        "Speech2TextConfig",
        sizes.HEARD,
        heard,
        PADDED_FRAMES | TARGET,
        PADDED_FRAMES_AXES | TARGET_AXES,
    )
    yield Model(
        "qwen2_audio",
        "qwen2_audio",
        "Qwen2AudioEncoder",
        "Qwen2AudioEncoderConfig",
        sizes.HEARD | {"max_source_positions": 20},
        from_frames,
        MEL,
        {"mel": {0: "batch"}},
    )
    yield Model(
        "voxtral",
        "voxtral",
        "VoxtralEncoder",
        "VoxtralEncoderConfig",
        BASE | {"num_mel_bins": 20, "max_source_positions": 20},
        from_frames,
        MEL,
        {"mel": {0: "batch"}},
    )
    yield Model(
        "phi4",
        "phi4_multimodal",
        "Phi4MultimodalAudioModel",
        "Phi4MultimodalAudioConfig",
        sizes.PHI4,
        lambda m, x, kept: m(x, kept),
        {"input_features": (2, 40, 20), KEPT: (2, 40)},
        {"input_features": {0: "batch"}, KEPT: {0: "batch"}},
    )
    yield Model(
        "gemma3n",
        "gemma3n",
        "Gemma3nAudioEncoder",
        "Gemma3nAudioConfig",
        sizes.GEMMA,
        chunked,
        {"input_features": (2, 40, 16), KEPT: (2, 40)},
        PADDED_FRAMES_AXES,
        lacking=UNTRACED,
    )


def cases() -> Iterator[Case]:
    return cases_of(models())
