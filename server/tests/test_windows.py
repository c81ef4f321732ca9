"""Windows of a layer, sliding and chunked, against transformers with the mask written out."""

from pathlib import Path
from typing import Any

import pytest
import torch

from client import row
from penstock.models.config import Window
from windowed import windowed

LENGTH = 90
IDS = [(7 * i * i + 3 * i + 5) % 199 for i in range(LENGTH)]


@pytest.mark.parametrize(
    "windows",
    [
        (Window(20),),
        (Window(24, chunked=True),),
        (None, Window(16, chunked=True)),
        (Window(20), Window(40)),
        (Window(16, chunked=True), None, Window(33)),
    ],
    ids=str,
)
def test_a_query_sees_the_keys_of_its_window_and_no_others(
    windows: tuple[Window | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = windowed(windows, tmp_path, monkeypatch)
    exact = reference(tmp_path, windows)
    position = 0
    for count in (1, 13, 30, 26, *[1] * 20):
        new = list(range(6)) if position == 0 else []
        start: dict[str, Any] | None = None if position else {}
        beside = row(1, IDS[:count], 0, [10, 11], start={})
        driver.step([row(0, IDS[position : position + count], position, new, start=start), beside])
        position += count
        for got, at in zip(driver.last_logits(), (position - 1, count - 1), strict=True):
            torch.testing.assert_close(got, exact[at], atol=2e-4, rtol=2e-4)


def reference(folder: Path, windows: tuple[Window | None, ...]) -> torch.Tensor:
    """Logits (T, V) of transformers, each layer with the mask of its window."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for index, layer in enumerate(model.model.layers):
        window = windows[index % len(windows)]

        def masked(module: Any, args: Any, kwargs: Any, window: Window | None = window) -> Any:
            hidden = torch.full((1, 1, LENGTH, LENGTH), -torch.inf)
            for query in range(LENGTH):
                first = 0
                if window is not None:
                    size = window.size
                    first = query // size * size if window.chunked else max(0, query + 1 - size)
                hidden[0, 0, query, first : query + 1] = 0
            return args, {**kwargs, "attention_mask": hidden}

        layer.self_attn.register_forward_pre_hook(masked, with_kwargs=True)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([IDS])).logits[0].float()
    return logits
