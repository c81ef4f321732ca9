# ruff: noqa: RUF001 (letters that look like others are in the expressions and tokens of models)
"""How byte-level vocabularies cut a text into words, by `tokenizer.ggml.pre`, as tokenizer.json says it. Must not import torch.

Names are those of llama.cpp's llama-vocab.cpp. Expressions are those of the models' own tokenizer.json files, which it names beside its adaptations of them.
"""

from typing import Any

from penstock.hub import kimi

Step = dict[str, Any]

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
FIRST = r"[^\r\n\p{L}\p{N}]?"


def _split(pattern: str, behavior: str = "Isolated") -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def _bytes(has_words: bool) -> Step:
    """Text to the letters that stand for bytes, with or without GPT-2's own words."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": has_words}


def _by(*patterns: str) -> list[Step]:
    return [*map(_split, patterns), _bytes(False)]


def _digits(each: bool) -> Step:
    return {"type": "Digits", "individual_digits": each}


LLAMA3 = _by(rf"{SHORT}|{WORD}|\p{{N}}{{1,3}}|{OTHERS}|{REST}")
QWEN2 = _by(rf"{SHORT}|{WORD}|\p{{N}}|{OTHERS}|{REST}")
QWEN35 = _by(
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{REST}"
)
GPT2 = [_bytes(True)]
DIGITS = [_digits(True), _bytes(True)]
TEKKEN = _by(
    rf"{FIRST}{UPPER}*{LOWER}+|{FIRST}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}"
)
GPT4O_WORDS = rf"{FIRST}{UPPER}*{LOWER}+{SHORT}?|{FIRST}{UPPER}+{LOWER}*{SHORT}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}"
GPT4O = _by(GPT4O_WORDS)
CHINESE = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK_V3 = _by(
    r"\p{N}{1,3}",
    CHINESE,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + REST,
)
LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭ"
    "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_LLM = [
    _split("[\r\n]"),
    _split(rf"\s?[{LETTERS}]+"),
    _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    _split(r"\s+$"),
    _split("[一-龥ࠀ-一가-퟿]+"),
    _digits(False),
    _bytes(False),
]
DEEPSEEK_CODER = [
    _split("[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split("[一-龥ࠀ-一가-퟿]+"),
    _digits(True),
    _bytes(False),
]
FALCON = [
    {"type": "Punctuation", "behavior": "Contiguous"},
    _bytes(True),
    _digits(False),
    _split("[0-9][0-9][0-9]"),
]
BLOOM = _by(" ?[^(\\s|[.,!?…。，、।۔،])]+")
BAILING = _by(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = _by(rf"{SHORT}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{REST}")
EXAONE_MOE = _by(
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
COHERE = _by(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O_WORDS)
MINICPM5 = _by(r"\p{N}{1,3}", rf"{SHORT}|{WORD}|\p{{N}}+|{OTHERS}|{REST}")

STEPS: dict[str, list[Step]] = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), LLAMA3),
    **dict.fromkeys(
        (
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ),
        QWEN2,
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum", "a.x-4.0", "gigachat"),
        GPT2,
    ),
    **dict.fromkeys(("granite-docling", "modern-bert"), GPT2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), DIGITS
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), GPT4O),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK_V3),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), BAILING),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), COHERE),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), BLOOM),
    "qwen35": QWEN35,
    "tekken": TEKKEN,
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
    "falcon": FALCON,
    "seed-coder": SEED,
    "exaone-moe": EXAONE_MOE,
    "minicpm5": MINICPM5,
    "kimi-k2": _by(kimi.WORDS),
}
# Of which a word that is in the vocabulary is its token, whatever merges lead to.
IGNORE_MERGES = frozenset(
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "minicpm5",
        "glm4",
        "glm5",
        "tekken",
    )
)
# Of which texts begin with the token of their begin where the file does not say.
BEGIN = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)
