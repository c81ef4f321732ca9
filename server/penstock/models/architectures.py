"""Which recipe serves which architecture, as `architectures` of config.json names it.

Imports nothing: to ask whether a model is served must not load torch.
"""

# Architecture to module of `penstock.models.recipes`.
RECIPES = {
    "ApertusForCausalLM": "apertus",
    "ArceeForCausalLM": "arcee",
    "AyaVisionForConditionalGeneration": "vision_language",
    "BartForConditionalGeneration": "bart",
    "BloomForCausalLM": "bloom",
    "CodeGenForCausalLM": "codegen",
    "Cohere2ForCausalLM": "cohere2",
    "Cohere2MoeForCausalLM": "cohere2_moe",
    "CohereForCausalLM": "cohere",
    "CwmForCausalLM": "cwm",
    "DbrxForCausalLM": "dbrx",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Exaone4ForCausalLM": "exaone4",
    "ExaoneMoeForCausalLM": "exaone_moe",
    "FalconForCausalLM": "falcon",
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
    "GlmForCausalLM": "glm",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "HYV3ForCausalLM": "hy_v3",
    "HeliumForCausalLM": "helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1",
    "HunYuanMoEV1ForCausalLM": "hunyuan_v1",
    "InternVLChatModel": "vision_language",
    "InternVLForConditionalGeneration": "vision_language",
    "Jais2ForCausalLM": "jais2",
    "KimiK25ForConditionalGeneration": "vision_language",
    "KimiVLForConditionalGeneration": "vision_language",
    "Kimi_K25ForConditionalGeneration": "vision_language",
    "LagunaForCausalLM": "laguna",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "vision_language",
    "LlamaForCausalLM": "llama",
    "LlavaForConditionalGeneration": "vision_language",
    "LlavaNextForConditionalGeneration": "vision_language",
    "MBartForConditionalGeneration": "bart",
    "MT5ForConditionalGeneration": "t5",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Ministral3ForCausalLM": "ministral3",
    "MinistralForCausalLM": "ministral",
    "Mistral3ForConditionalGeneration": "vision_language",
    "Mistral4ForCausalLM": "mistral4",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MptForCausalLM": "mpt",
    "NanoChatForCausalLM": "nanochat",
    "NemotronForCausalLM": "nemotron",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "OpenAIGPTLMHeadModel": "openai_gpt",
    "PersimmonForCausalLM": "persimmon",
    "Phi3ForCausalLM": "phi3",
    "Phi4MMForCausalLM": "phi4_multimodal",
    "Phi4MultimodalForCausalLM": "phi4_multimodal",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen2VLForConditionalGeneration": "vision_language",
    "Qwen2_5_VLForConditionalGeneration": "vision_language",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3VLForConditionalGeneration": "vision_language",
    "Qwen3VLMoeForConditionalGeneration": "vision_language",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "SolarOpenForCausalLM": "solar_open",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "T5ForConditionalGeneration": "t5",
    "VaultGemmaForCausalLM": "vaultgemma",
}


def architectures(config: dict[str, object]) -> list[str]:
    """The names that config.json gives."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def architecture_of(config: dict[str, object]) -> str | None:
    """The first architecture that a recipe serves, or None."""
    return next((name for name in architectures(config) if name in RECIPES), None)


# What a model may read beside text, and the parts of config.json that say so.
READ = {"images": ("vision_config", "embd_layer"), "sound": ("audio_config", "audio_processor")}


def left_out(config: dict[str, object]) -> str | None:
    """What a model can do that no recipe serves, in a sentence; None: nothing."""
    reads = [what for what, parts in READ.items() if any(config.get(part) is not None for part in parts)]
    return f"the model reads {' and '.join(reads)}, too; only its text is served" if reads else None
