"""One entry for each family, or each of its shapes that the decoder treats differently: a config.json as the hub
has it, shrunk.
"""

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "LLaMA 3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 199,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}
