"""Models that read images, too: their text is served with the recipe of the family that it comes from, and what reads
images and sound stays in the file.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.recipes.fields import Fields

# The encoders of images and sound, what brings their numbers to the width of the text model, and layers that predict several tokens
# ahead.
TOWERS = (
    "vision_tower|vision_model|vision_encoder|visual|image_newline|audio_tower|audio_model|audio_encoder|audio_adapter|embed_vision|embed_audio"
    "|high_res_vision_\\w+|image_tower|video_tower|vision_backbone|vit|sam_model|qwen2_model|view_seperator|visual_projection|vision_projector|mlp_AR|\\w+_projectors"
    "|resampler_model|qformer|query_tokens|language_projection|encoder|generation_(aligner|embeddings|head)|image_pooling_2d"
    "|(acoustic|semantic)_tokenizer_encoder|talker|token2wav|code2wav|perception|ctc_timestamp|blocks|patch_embed|pos_embed|deepstack_merger_list"
    "|vision_embed_tokens|vision_final_layernorm|vqmodel|vision_embedder|visual_embeddings_table|sound_encoder|sound_projection"
    "|vision|vpm|resampler|visual_tokenizer|vte|visual_table|gen_(vision_model|aligner|head|embed)|tile_indicators"
    "|(acoustic|semantic)_(tokenizer|connector)|discrete_\\w+|audio_projector|video_audio_compressor"
    "|multi_modal_projector|mm_projector|vision_projection|projector|aligner|patch_merge_mlp|connector|merger|mlp1|mtp"
)

# Kinds that transformers saves with the default of the text's class inside, and what is true of the head outside.
TIED_BY_WHOLE = ("cohere_compass", "qwen2_5_omni_thinker", "qwen3_vl_moe")


def text_keys(keys: CheckpointKeys) -> CheckpointKeys:
    """What the tensors of the text model are called within the whole. The first releases of most families put the whole
    text model below `language_model`; later ones only what is below its head; and some never had a name for it.
    """
    return replace(
        keys,
        embedding=keys.embedding.removeprefix("model."),
        layer=keys.layer.removeprefix("model."),
        norm=keys.norm.removeprefix("model."),
        prefixes=tuple(
            whole + part.removeprefix("model.")
            for part in keys.prefixes
            for whole in (
                "language_model.model.",
                "language_model.backbone.",
                "model.language_model.model.",
                "model.language_model.",
                "text_model.model.",
                "model.text_model.",
                "thinker.model.",
                "llm.model.",
                "language.model.",
                "model.",
                "",
            )
        ),
        head=f"language_model.{keys.head}",
        other_heads=(
            keys.head,
            f"text_model.{keys.head}",
            f"thinker.{keys.head}",
            f"llm.{keys.head}",
            f"language.{keys.head}",
            f"model.language_model.{keys.head}",
        ),
        ignored=(*keys.ignored, rf"(model\.|thinker\.)?({TOWERS})(\..*)?"),
    )


def text_config(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The text model's config.json. `defaults`: what published ones leave out."""
    text = {**defaults, **Fields(config).part("text_config").config}
    of_whole = config.get("tie_word_embeddings")
    if of_whole is not None and (
        text.get("tie_word_embeddings") is None or config.get("model_type") in TIED_BY_WHOLE
    ):
        text["tie_word_embeddings"] = of_whole
    return text
