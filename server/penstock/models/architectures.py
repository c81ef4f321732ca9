"""Which recipe serves which architecture, as `architectures` of config.json names it.

Imports nothing: whoever only has to know whether a model is served need not load torch.
"""

# Architecture to module of `penstock.models.recipes`.
RECIPES = {
    "LlamaForCausalLM": "llama",
}


def architectures(config: dict[str, object]) -> list[str]:
    """The names that config.json gives."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def architecture_of(config: dict[str, object]) -> str | None:
    """The first architecture that a recipe serves, or None."""
    return next((name for name in architectures(config) if name in RECIPES), None)
