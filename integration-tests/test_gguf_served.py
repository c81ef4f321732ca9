"""GGUF files through the whole server: named as a file, a folder, or on the hub, they answer as the model that they were made of."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import wire
from checkpoints import SHIPPED
from conftest import Launch
from launched import Launched
from load import ask_all, chat, complete
from prompts import user

sys.path.append(str(Path(__file__).parents[1] / "server" / "tests"))  # behind what has the same name here

from gguf_files import write

CONFIG = json.loads((SHIPPED / "config.json").read_text())
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
}
ASKS = [
    *(complete(f"{number} things:", 40) for number in range(4)),
    chat(user("Sort: pear apple cherry"), 40),
]


def shipped_as_gguf(folder: Path, name: str, kind: str) -> Path:
    """The shipped model, its matrices in this type. How its vocabulary cuts words has no name in such files, so that its tokenizer.json lies
    beside it, as people do it.
    """
    folder.mkdir(exist_ok=True)
    tensors, types = {}, {}
    heads = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
    for ours, tensor in load_file(SHIPPED / "model.safetensors").items():
        one = tensor.float().numpy()
        module = ours.removesuffix(".weight")
        at = module.split(".")
        known = NAMES[module] if module in NAMES else f"blk.{at[2]}.{NAMES['.'.join(at[3:])]}"
        if at[-1] in heads:
            one = one.reshape(heads[at[-1]], 2, -1, one.shape[-1]).swapaxes(1, 2).reshape(one.shape)
        tensors[f"{known}.weight"] = one
        if one.ndim == 2 and kind != "F32":
            types[f"{known}.weight"] = kind
    fields = {
        "context_length": CONFIG["max_position_embeddings"],
        "embedding_length": CONFIG["hidden_size"],
        "block_count": CONFIG["num_hidden_layers"],
        "feed_forward_length": CONFIG["intermediate_size"],
        "attention.head_count": CONFIG["num_attention_heads"],
        "attention.head_count_kv": CONFIG["num_key_value_heads"],
        "attention.key_length": CONFIG.get("head_dim"),
        "attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
        "rope.freq_base": float(CONFIG.get("rope_theta") or CONFIG["rope_parameters"]["rope_theta"]),
    }
    tokens = json.loads((SHIPPED / "tokenizer.json").read_text())
    texts = [text for text, _ in sorted(tokens["model"]["vocab"].items(), key=lambda pair: pair[1])]
    added = {one["id"] for one in tokens["added_tokens"]}
    eos = CONFIG["eos_token_id"]
    more: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if at in added else 1 for at in range(len(texts))],
        "tokenizer.ggml.eos_token_id": eos if isinstance(eos, int) else eos[0],
        "tokenizer.chat_template": (SHIPPED / "chat_template.jinja").read_text(),
    }
    made = {name: value for name, value in fields.items() if value is not None}
    file = write(folder / f"{name}.gguf", tensors, made, more=more, types=types)
    shutil.copy(SHIPPED / "tokenizer.json", folder / "tokenizer.json")
    return file


def served(launch: Launch, tmp_path: Path, name: str, *flags: str) -> Launched:
    cache = "--huggingface-hub-cache", str(tmp_path / "cache")
    return launch("--model-id", name, *cache, *flags).wait_ready()


def test_a_file_answers_as_the_model_that_it_was_made_of(launch: Launch, tmp_path: Path) -> None:
    file = shipped_as_gguf(tmp_path / "files", "tiny-BF16", "BF16")
    original, made = launch().wait_ready(), served(launch, tmp_path, str(file))
    wanted, found = ask_all(original.address, ASKS), ask_all(made.address, ASKS)
    assert [one.text for one in found] == [one.text for one in wanted]
    info = wire.get(made.address, "/info").json()
    assert info["model_id"] == str(file)
    assert "made " in made.stdout()
    again = served(launch, tmp_path, str(file.parent))
    assert "found " in again.stdout(), "a folder of one model is that model"
    assert [one.text for one in ask_all(again.address, ASKS)] == [one.text for one in wanted]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Q4_0", ", int4 in groups of 32, threads"),
        ("Q4_1", ", int4 in groups of 32 with offsets, threads"),
        ("Q8_0", ", int8, threads"),
    ],
)
def test_blocks_are_served_in_few_bits(kind: str, says: str, launch: Launch, tmp_path: Path) -> None:
    file = shipped_as_gguf(tmp_path / "files", f"tiny-{kind}", kind)
    made = served(launch, tmp_path, str(file))
    assert "the CPU engine runs the model: " in made.stdout() and says in made.stdout()
    found = ask_all(made.address, ASKS)
    plain = served(launch, tmp_path, str(file), "--quantize", "none")
    assert "bf16, threads" in plain.stdout()
    # What they stand for is the same; activations are rounded to 8 bits in one of them.
    same = sum(
        one.text[:20] == other.text[:20]
        for one, other in zip(found, ask_all(plain.address, ASKS), strict=True)
    )
    assert same >= 3


def test_two_shards_say_what_one_says(launch: Launch, tmp_path: Path) -> None:
    file = shipped_as_gguf(tmp_path / "files", "tiny-Q8_0", "Q8_0")
    flags = ("--dtype", "float32")
    one, two = (
        served(launch, tmp_path, str(file), *flags),
        served(launch, tmp_path, str(file), *flags, "--num-shard", "2"),
    )
    assert [each.text for each in ask_all(two.address, ASKS)] == [
        each.text for each in ask_all(one.address, ASKS)
    ]


def test_what_is_wrong_with_a_name_or_a_file_ends_the_start_in_a_line(launch: Launch, tmp_path: Path) -> None:
    files = tmp_path / "files"
    for kind in ("BF16", "Q8_0"):
        shipped_as_gguf(files, f"tiny-{kind}", kind)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (tmp_path / "m-00001-of-00002.gguf").write_bytes((files / "tiny-Q8_0.gguf").read_bytes())
    for name, says in {
        str(files): "has 2 models in GGUF files (tiny-BF16.gguf, tiny-Q8_0.gguf): name the file of one",
        str(tmp_path / "broken.gguf"): "broken.gguf: not a sound GGUF file: it is cut short",
        str(
            tmp_path / "m-00001-of-00002.gguf"
        ): "is part of a model: 1 file is missing: m-00002-of-00002.gguf",
        str(tmp_path / "none.gguf"): "there is no folder",
    }.items():
        ended = launch("--model-id", name, "--huggingface-hub-cache", str(tmp_path / "cache"))
        assert ended.wait_ended() == 1
        assert says in ended.stdout() + ended.stderr(), ended.stderr()
