"""Which recipe serves which architecture, as `architectures` of config.json names it.

Imports nothing: to ask whether a model is served must not load torch.
"""

# Architecture to module of `penstock.models.recipes`.
RECIPES = {
    "AXK2ForCausalLM": "axk2",
    "ApertusForCausalLM": "apertus",
    "ArceeForCausalLM": "arcee",
    "AriaForConditionalGeneration": "vision_language",
    "AriaTextForCausalLM": "aria",
    "AyaVisionForConditionalGeneration": "vision_language",
    "BailingHybridForCausalLM": "bailing_hybrid",
    "BailingMoeV3ForCausalLM": "bailing_hybrid",
    "BambaForCausalLM": "bamba",
    "BartForConditionalGeneration": "bart",
    "BartModel": "bart",
    "BlenderbotForConditionalGeneration": "bart",
    "BlenderbotSmallForConditionalGeneration": "bart",
    "Blip2ForConditionalGeneration": "vision_language",
    "BloomForCausalLM": "bloom",
    "CodeGenForCausalLM": "codegen",
    "Cohere2ForCausalLM": "cohere2",
    "Cohere2MoeForCausalLM": "cohere2_moe",
    "Cohere2VisionForConditionalGeneration": "vision_language",
    "CohereCompassForCausalLM": "cohere_compass",
    "CohereCompassForConditionalGeneration": "vision_language",
    "CohereForCausalLM": "cohere",
    "Cosmos3EdgeForConditionalGeneration": "vision_language",
    "Cosmos3ForConditionalGeneration": "vision_language",
    "Cosmos3OmniForConditionalGeneration": "vision_language",
    "CwmForCausalLM": "cwm",
    "DbrxForCausalLM": "dbrx",
    "DeepseekOCR2ForCausalLM": "vision_language",
    "DeepseekOCRForCausalLM": "vision_language",
    "DeepseekOcr2ForConditionalGeneration": "vision_language",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV32ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekVLForConditionalGeneration": "vision_language",
    "DeepseekVLHybridForConditionalGeneration": "vision_language",
    "DeepseekVLV2ForCausalLM": "vision_language",
    "Dot3NoteForCausalLM": "dots3_note",
    "Dots1ForCausalLM": "dots1",
    "Dots3NoteForCausalLM": "dots3_note",
    "Dots3NoteForConditionalGeneration": "dots3_note",
    "Emu3ForCausalLM": "vision_language",
    "Emu3ForConditionalGeneration": "vision_language",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Ernie4_5_VLMoeForConditionalGeneration": "vision_language",
    "Exaone4ForCausalLM": "exaone4",
    "Exaone4_5_ForConditionalGeneration": "vision_language",
    "ExaoneMoEForCausalLM": "exaone_moe",
    "ExaoneMoeForCausalLM": "exaone_moe",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "FalconMambaForCausalLM": "falcon_mamba",
    "FastVlmForConditionalGeneration": "vision_language",
    "FunAsrNanoForConditionalGeneration": "vision_language",
    "FuyuForCausalLM": "vision_language",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3_vision",
    "Gemma3nForCausalLM": "gemma3n",
    "Gemma3nForConditionalGeneration": "vision_language",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "vision_language",
    "Gemma4UnifiedForCausalLM": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "vision_language",
    "GemmaForCausalLM": "gemma",
    "Glm46VForConditionalGeneration": "vision_language",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "deepseek",
    "Glm4vForConditionalGeneration": "vision_language",
    "Glm4vMoeForConditionalGeneration": "vision_language",
    "GlmAsrForConditionalGeneration": "vision_language",
    "GlmForCausalLM": "glm",
    "GlmMoeDsaForCausalLM": "deepseek",
    "GlmOcrForConditionalGeneration": "vision_language",
    "GotOcr2ForConditionalGeneration": "vision_language",
    "GptOssForCausalLM": "gpt_oss",
    "Granite4VisionForConditionalGeneration": "vision_language",
    "GraniteDoclingForConditionalGeneration": "vision_language",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "GraniteSpeechForConditionalGeneration": "vision_language",
    "GraniteSpeechPlusForConditionalGeneration": "vision_language",
    "HCXVisionV2ForCausalLM": "vision_language",
    "HYV3ForCausalLM": "hy_v3",
    "HYV4ForCausalLM": "hy_v4",
    "HeliumForCausalLM": "helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1",
    "HunYuanMoEV1ForCausalLM": "hunyuan_v1",
    "HunYuanVLForConditionalGeneration": "vision_language",
    "HyperCLOVAXForCausalLM": "hyperclovax",
    "HyperCLOVAXVisionV2ForConditionalGeneration": "vision_language",
    "Idefics2ForConditionalGeneration": "vision_language",
    "Idefics3ForConditionalGeneration": "vision_language",
    "InklingForCausalLM": "inkling",
    "InklingForConditionalGeneration": "inkling",
    "InstructBlipForConditionalGeneration": "vision_language",
    "InstructBlipVideoForConditionalGeneration": "vision_language",
    "InternLM2ForCausalLM": "internlm2",
    "InternLM3ForCausalLM": "llama",
    "InternVLChatModel": "vision_language",
    "InternVLForConditionalGeneration": "vision_language",
    "Jais2ForCausalLM": "jais2",
    "JambaForCausalLM": "jamba",
    "JanusForConditionalGeneration": "vision_language",
    "KimiK25ForConditionalGeneration": "vision_language",
    "KimiLinearForCausalLM": "kimi_linear",
    "KimiVLForConditionalGeneration": "vision_language",
    "Kimi_K25ForConditionalGeneration": "vision_language",
    "LLaMAForCausalLM": "llama",
    "LLaVAOneVision1_5_ForConditionalGeneration": "vision_language",
    "LagunaForCausalLM": "laguna",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Lfm2VlForConditionalGeneration": "vision_language",
    "Lfm3ForCausalLM": "lfm3",
    "Lfm3VlForConditionalGeneration": "vision_language",
    "LightOnOCRForConditionalGeneration": "vision_language",
    "LightOnOcrForConditionalGeneration": "vision_language",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "vision_language",
    "LlamaForCausalLM": "llama",
    "LlavaForConditionalGeneration": "vision_language",
    "LlavaLlamaForCausalLM": "vision_language",
    "LlavaMistralForCausalLM": "vision_language",
    "LlavaNextForConditionalGeneration": "vision_language",
    "LlavaNextVideoForConditionalGeneration": "vision_language",
    "LlavaOnevisionForConditionalGeneration": "vision_language",
    "LlavaQwen2ForCausalLM": "vision_language",
    "LlavaQwenForCausalLM": "vision_language",
    "M2M100ForConditionalGeneration": "bart",
    "MBartForConditionalGeneration": "bart",
    "MPTForCausalLM": "mpt",
    "MT5ForConditionalGeneration": "t5",
    "Mamba2ForCausalLM": "mamba2",
    "MambaForCausalLM": "mamba",
    "MarianMTModel": "bart",
    "MiMoForCausalLM": "mimo",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MiniCPMForCausalLM": "minicpm",
    "MiniCPMOcrForConditionalGeneration": "vision_language",
    "MiniCPMV": "vision_language",
    "MiniCPMV4_6ForConditionalGeneration": "vision_language",
    "MiniCPMV4_7ForConditionalGeneration": "vision_language",
    "MiniMaxForCausalLM": "minimax",
    "MiniMaxM1ForCausalLM": "minimax",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MiniMaxM3SparseForCausalLM": "minimax_m3",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3",
    "MiniMaxText01ForCausalLM": "minimax",
    "MiniMaxVL01ForConditionalGeneration": "vision_language",
    "Ministral3ForCausalLM": "ministral3",
    "MinistralForCausalLM": "ministral",
    "Mistral3ForConditionalGeneration": "vision_language",
    "Mistral4ForCausalLM": "mistral4",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MllamaForConditionalGeneration": "mllama",
    "Molmo2ForConditionalGeneration": "vision_language",
    "MptForCausalLM": "mpt",
    "MultiModalityCausalLM": "vision_language",
    "MvpForConditionalGeneration": "bart",
    "NanoChatForCausalLM": "nanochat",
    "NeMoSpeechLMForConditionalGeneration": "vision_language",
    "Nemotron3_5TranscribeForConditionalGeneration": "vision_language",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h",
    "NemotronH_Nano_Omni_Reasoning_V3": "vision_language",
    "NemotronH_Nano_VL_V2": "vision_language",
    "NemotronH_Omni_Reasoning_V3": "vision_language",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoForCausalLM": "olmo",
    "OlmoHybridForCausalLM": "olmo_hybrid",
    "OlmoeForCausalLM": "olmoe",
    "OpenAIGPTLMHeadModel": "openai_gpt",
    "Ovis": "vision_language",
    "Ovis2ForConditionalGeneration": "vision_language",
    "Ovis2_5": "vision_language",
    "PLBartForConditionalGeneration": "bart",
    "PaddleOCRVLForConditionalGeneration": "vision_language",
    "PegasusForConditionalGeneration": "bart",
    "PerceptionLMForConditionalGeneration": "vision_language",
    "PersimmonForCausalLM": "persimmon",
    "Phi3ForCausalLM": "phi3",
    "Phi4MMForCausalLM": "phi4_multimodal",
    "Phi4MultimodalForCausalLM": "phi4_multimodal",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "QianfanOCRForConditionalGeneration": "vision_language",
    "Qwen2AudioForConditionalGeneration": "vision_language",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen2VLForConditionalGeneration": "vision_language",
    "Qwen2_5OmniForConditionalGeneration": "vision_language",
    "Qwen2_5OmniModel": "vision_language",
    "Qwen2_5OmniThinkerForConditionalGeneration": "vision_language",
    "Qwen2_5_VLForConditionalGeneration": "vision_language",
    "Qwen3ASRForConditionalGeneration": "vision_language",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3OmniMoeForConditionalGeneration": "vision_language",
    "Qwen3OmniMoeThinkerForConditionalGeneration": "vision_language",
    "Qwen3VLForConditionalGeneration": "vision_language",
    "Qwen3VLMoeForConditionalGeneration": "vision_language",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen3_8FlashNextForCausalLM": "qwen4_exp",
    "Qwen3_8FlashNextForConditionalGeneration": "qwen4_exp",
    "Qwen3_8_FlashNextForConditionalGeneration": "qwen4_exp",
    "Qwen4ExpForCausalLM": "qwen4_exp",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp",
    "RecurrentGemmaForCausalLM": "recurrent_gemma",
    "RwkvForCausalLM": "rwkv",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "SmolVLMForConditionalGeneration": "vision_language",
    "SolarOpenForCausalLM": "solar_open",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "Step3p5ForCausalLM": "step3p5",
    "Step3p7ForConditionalGeneration": "step3p5",
    "T5ForConditionalGeneration": "t5",
    "VaultGemmaForCausalLM": "vaultgemma",
    "VibeVoiceAsrForConditionalGeneration": "vision_language",
    "VibeVoiceForASRTraining": "vision_language",
    "VideoLlama3ForConditionalGeneration": "vision_language",
    "VideoLlavaForConditionalGeneration": "vision_language",
    "Videollama3Qwen2ForCausalLM": "vision_language",
    "VipLlavaForConditionalGeneration": "vision_language",
    "VoxtralForConditionalGeneration": "vision_language",
    "XGLMForCausalLM": "xglm",
}


# How the names of classes end that say something; before it most have their model_type, in another spelling.
ENDINGS = ("", "ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "MTModel")
TEXT, WHOLE = ENDINGS[1:3]
# The architecture of a model_type that the class's name does not have.
OF_TYPES = {
    "ernie4_5": "Ernie4_5ForCausalLM",  # Baidu's own spelling has the same recipe
    "ernie4_5_moe_vl": "Ernie4_5_VLMoeForConditionalGeneration",
    "glmga": "Glm46VForConditionalGeneration",
    "gpt-sw3": "GPT2LMHeadModel",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "inkling_mm_model": "InklingForConditionalGeneration",
    "internvl_chat": "InternVLChatModel",
    "iquestcoder": "LlamaForCausalLM",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
    "multi_modality": "MultiModalityCausalLM",
    "nemotron_h_omni": "NemotronH_Omni_Reasoning_V3",
    "pp_chart2table": "GotOcr2ForConditionalGeneration",
    "shieldgemma2": "Gemma3ForConditionalGeneration",
}


def architectures(config: dict[str, object]) -> list[str]:
    """The names that config.json gives; where it gives none, the one that goes with its model_type, if it is known."""
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    kind = config.get("model_type")
    found = _of_type(kind) if isinstance(kind, str) else None
    return [] if found is None else [found]


def as_named(config: dict[str, object]) -> str:
    """These names for a message, in which a hostile file's have no line breaks and an end."""
    return ", ".join(repr(name)[1:-1][:100] for name in architectures(config)[:10])


def _of_type(kind: str) -> str | None:
    """The architecture of a model_type; None: there is none, or there are several. Of a text and of the whole that it is a part of, which have
    one name, the text has a type of its own (`gemma3_text`).
    """
    if kind in OF_TYPES:
        return OF_TYPES[kind]
    plain = _spelled(kind)
    # Of one name in two spellings, which has one recipe, the last is the one that transformers has.
    by_name = {_spelled(name): name for name in RECIPES}
    found = [by_name[plain + end.lower()] for end in ENDINGS if plain + end.lower() in by_name]
    if not found and plain.endswith("text"):
        text, whole = (by_name.get(plain.removesuffix("text") + end.lower()) for end in (TEXT, WHOLE))
        return text if whole is not None else None
    if len(found) == 2 and found == [by_name.get(plain + end.lower()) for end in (TEXT, WHOLE)]:
        return found[1]
    return found[0] if len(found) == 1 else None


def architecture_of(config: dict[str, object]) -> str | None:
    """The first architecture that a recipe serves, or None."""
    return next((name for name in architectures(config) if name in RECIPES), None)


def other_versions(config: dict[str, object]) -> str:
    """Architectures with recipes that have the first one's name but for its numbers, in words; nothing where there are none."""
    stems = {_without_numbers(name) for name in architectures(config)[:1]}
    found = [name for name in RECIPES if _without_numbers(name) in stems]
    return (
        f"; of other versions of it {', '.join(found)} {'is' if len(found) == 1 else 'are'} served"
        if found
        else ""
    )


def _spelled(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _without_numbers(name: str) -> str:
    return "".join(letter for letter in name if letter.isalpha())


# What a model may read beside text, and the parts of config.json that say so.
READ = {
    "images": (
        *("vision_config", "embd_layer", "vq_config", "image_size", "vit_config", "mm_vision_tower"),
        *("visual_tokenizer_config", "vision_encoder_config"),
    ),
    "sound": (
        *("audio_config", "audio_processor", "encoder_config"),
        *("acoustic_tokenizer_config", "acoustic_tokenizer_encoder_config"),
    ),
}


def left_out(config: dict[str, object]) -> str | None:
    """What a model can do that no recipe serves, in a sentence; None: nothing."""
    thinker = config.get("thinker_config")  # of Qwen-Omni
    config = thinker if isinstance(thinker, dict) else config
    reads = [what for what, parts in READ.items() if any(config.get(part) is not None for part in parts)]
    return f"the model reads {' and '.join(reads)}, too; only its text is served" if reads else None
