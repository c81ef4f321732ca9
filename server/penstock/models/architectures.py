"""Which recipe serves which architecture, as `architectures` of config.json names it.

Imports nothing: to ask whether a model is served must not load torch.
"""

# Architecture to module of `penstock.models.recipes`.
RECIPES = {
    "BailingHybridForCausalLM": "bailing_hybrid",
    "BambaForCausalLM": "bamba",
    "BartForConditionalGeneration": "bart",
    "BloomForCausalLM": "bloom",
    "CodeGenForCausalLM": "codegen",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "cohere",
    "DbrxForCausalLM": "dbrx",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "FalconMambaForCausalLM": "falcon_mamba",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3_vision",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "GlmForCausalLM": "glm",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "JambaForCausalLM": "jamba",
    "KimiLinearForCausalLM": "kimi_linear",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Lfm3ForCausalLM": "lfm3",
    "LlamaForCausalLM": "llama",
    "MBartForConditionalGeneration": "bart",
    "MT5ForConditionalGeneration": "t5",
    "Mamba2ForCausalLM": "mamba2",
    "MambaForCausalLM": "mamba",
    "MiniMaxForCausalLM": "minimax",
    "Mistral3ForConditionalGeneration": "mistral3",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MptForCausalLM": "mpt",
    "NemotronHForCausalLM": "nemotron_h",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "OlmoForCausalLM": "olmo",
    "OlmoHybridForCausalLM": "olmo_hybrid",
    "OpenAIGPTLMHeadModel": "openai_gpt",
    "PersimmonForCausalLM": "persimmon",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "RecurrentGemmaForCausalLM": "recurrent_gemma",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "T5ForConditionalGeneration": "t5",
}


def architectures(config: dict[str, object]) -> list[str]:
    """The names that config.json gives."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def architecture_of(config: dict[str, object]) -> str | None:
    """The first architecture that a recipe serves, or None."""
    return next((name for name in architectures(config) if name in RECIPES), None)


TEXT_ONLY = "the model reads images, too; only its text is served"


def reads_images(config: dict[str, object]) -> bool:
    """Whether a recipe serves a part of the model."""
    return "vision_config" in config
