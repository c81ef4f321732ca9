"""Models in GGUF files on the hub: which of a repository's is fetched, and nothing else."""

import json
from pathlib import Path

import pytest

from hub_server import Fault, Repo
from penstock.hub.gguf_files import choose, models, tag_of
from penstock.hub.request import Unavailable
from test_hub import CONFIG, FILES, Machine, machine, names_in

__all__ = ["machine"]  # a fixture

PARTS = [f"BF16/m-BF16-{at:05}-of-00002.gguf" for at in (1, 2)]
OTHERS = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "m-IQ4_XS.gguf"]
NO_MODELS = ["mmproj-m-F16.gguf", "m.imatrix.gguf", "mtp-m-Q4_K_M.gguf", "README.md", "config.json"]
NAMES = [*OTHERS, *PARTS, *NO_MODELS]


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("", ["m-Q4_K_M.gguf"]),
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("IQ4_XS", ["m-IQ4_XS.gguf"]),
        ("bf16", PARTS),
        (PARTS[1], PARTS),
        ("m-Q8_0.gguf", ["m-Q8_0.gguf"]),
    ],
)
def test_a_tag_or_a_file_names_a_model(wanted: str, files: list[str]) -> None:
    assert choose(NAMES, wanted, "owner/name") == files


def test_what_none_fits_is_said_with_those_that_there_are() -> None:
    with pytest.raises(
        Unavailable, match=r"owner/name has no GGUF file Q2_K, only BF16, IQ4_XS, Q4_K_M, Q8_0, UD-Q4_K_XL"
    ):
        choose(NAMES, "Q2_K", "owner/name")
    with pytest.raises(Unavailable, match="has no model in GGUF files"):
        choose(NO_MODELS, "", "owner/name")
    with pytest.raises(
        Unavailable, match=r"has not all parts of BF16/m-BF16: no BF16/m-BF16-00002-of-00002\.gguf"
    ):
        choose([*OTHERS, PARTS[0]], "BF16", "owner/name")


def test_names_say_how_numbers_are_stored() -> None:
    found = {
        tag_of(model)
        for model in models(
            [
                "a.Q5_K_S.gguf",
                "b/Q6_K/b-00001-of-00001.gguf",
                "x-mxfp4.gguf",
                "plain.gguf",
                "c-7b-instruct-f16.gguf",
            ]
        )
    }
    assert found == {"Q5_K_S", "Q6_K", "mxfp4", "plain", "f16"}
    assert [tag_of(name) for name in ("m-Q4_K_M-imat", "qwen2-7b-fp16", "m-UD-Q2_K_XL")] == [
        "Q4_K_M",
        "fp16",
        "UD-Q2_K_XL",
    ]
    both = ["m.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert (
        choose(both, "m.gguf", "owner/name") == both[:1] and choose(both, both[2], "owner/name") == both[1:]
    )
    assert choose(NAMES, "latest", "owner/name") == ["m-Q4_K_M.gguf"]
    # Without any of the usual ones it is the first.
    assert choose(["b.gguf", "a.gguf"], "", "owner/name") == ["a.gguf"]


def fill(machine: Machine, *names: str) -> None:
    machine.hub.repos["owner/gguf"] = Repo({name: name.encode() for name in names})


def test_only_the_files_that_are_meant_are_fetched(machine: Machine) -> None:
    fill(machine, *NAMES, "tokenizer.json")
    ended = machine.run("owner/gguf", "--gguf", "BF16", "--for-this-machine")
    assert ended.code == 0, ended.lines
    found = ended.lines[-1]["gguf"]
    file = Path(found["file"])
    assert file.name == "m-BF16-00001-of-00002.gguf" and file.read_bytes() == PARTS[0].encode()
    assert names_in(file.parents[1]) == {*PARTS, "tokenizer.json"}
    assert found["commit"] == "a" * 40
    assert machine.run("owner/gguf", "--gguf", "BF16", HF_HUB_OFFLINE="1").lines[-1]["gguf"]["file"] == str(
        file
    )
    failure = machine.run("owner/gguf", "--gguf", "Q8_0", HF_HUB_OFFLINE="1").failure
    assert "lacks the GGUF file Q8_0 of owner/gguf" in failure
    assert "has no GGUF file Q2_K, only" in machine.run("owner/gguf", "--gguf", "Q2_K").failure


def test_a_repository_of_nothing_else_is_served_by_the_usual_one(machine: Machine) -> None:
    fill(machine, *NAMES)
    ended = machine.run("owner/gguf", "--for-this-machine")
    assert ended.code == 0, ended.lines
    file = Path(ended.lines[-1]["gguf"]["file"])
    assert file.name == "m-Q4_K_M.gguf"
    told = [line["message"] for line in ended.lines if line.get("level") == "INFO"]
    assert any(
        "of owner/gguf m-Q4_K_M.gguf is served; owner/gguf:TAG names another: BF16, IQ4_XS" in line
        for line in told
    )
    for offline in ({"HF_HUB_OFFLINE": "1"}, {}):
        machine.hub.faults = [] if offline else [Fault("GET", "", 503, times=1000)]
        assert machine.run("owner/gguf", **offline).lines[-1]["gguf"]["file"] == str(file)


def test_beside_other_weights_they_are_asked_for_only_by_name(machine: Machine) -> None:
    machine.hub.repos["owner/model"] = Repo({**FILES, "m-Q4_K_M.gguf": b"blocks"})
    assert not any(name.endswith(".gguf") for name in names_in(machine.run("owner/model").folder))
    assert (
        Path(machine.run("owner/model", "--gguf", "Q4_K_M").lines[-1]["gguf"]["file"]).read_bytes()
        == b"blocks"
    )
    assert json.loads(CONFIG)
