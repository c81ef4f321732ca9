"""Errors of torch.distributed: which say that another rank has ended, and which are this one's own."""

from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult

import pytest
import torch

from penstock.errors import PeerLost, UnusableModel
from penstock.parallel import distributed, rendezvous

LOST = [
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:52146",
    "[gloo/transport/tcp/pair.cc:598] Read error [127.0.0.1]:1: Connection reset by peer",
    "writev [127.0.0.1]:4711: Broken pipe",
    "[gloo/transport/tcp/pair.cc:598] Read error [10.0.0.2]:4711: Connection timed out",
    "[gloo/transport/tcp/pair.cc:598] Read error [10.0.0.2]:4711: No route to host",
    "[gloo/transport/tcp/pair.cc:598] Read error [10.0.0.2]:4711: Host is down",
    "writev [10.0.0.2]:4711: Network is unreachable",
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: ...",
    "failed to recv, got 0 bytes",
]
OWN = [
    "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
    "Error while creating shared memory segment /dev/shm/nccl-a1b2c3 (size 9637888)",
    "CUDA error: an illegal memory access was encountered",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
]


@pytest.mark.parametrize("text", LOST)
def test_what_is_said_of_a_rank_that_has_ended_is_a_loss(text: str) -> None:
    with pytest.raises(PeerLost, match=text[:20].replace("[", r"\[")), distributed._named():
        raise RuntimeError(text)


@pytest.mark.parametrize("text", OWN)
def test_a_ranks_own_error_keeps_its_words(text: str) -> None:
    """All ranks would call it the loss of another one, and nobody would be to blame."""
    error = RuntimeError(text)
    with pytest.raises(RuntimeError) as caught, distributed._named():
        raise error
    assert caught.value is error


@pytest.mark.parametrize(("texts", "raised"), [(LOST, PeerLost), (OWN, RuntimeError)])
def test_what_was_sent_is_lost_for_the_same_reasons(texts: list[str], raised: type[Exception]) -> None:
    def wait() -> None:
        raise RuntimeError(texts[0])

    work: Any = SimpleNamespace(is_completed=lambda: False, wait=wait)
    sent = distributed._Sent(work)
    assert not sent.is_completed()
    with pytest.raises(raised) as caught:
        sent.wait()
    assert type(caught.value) is raised


@pytest.mark.parametrize(("texts", "raised"), [(LOST, PeerLost), (OWN, UnusableModel)])
def test_ranks_that_cannot_meet_say_why(
    texts: list[str], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet(place: SplitResult, rank: int, size: int, parts: list[list[int]], device: torch.device) -> None:
        raise RuntimeError(texts[0])

    monkeypatch.setattr(distributed, "meet", meet)
    with pytest.raises(raised) as caught:
        rendezvous.meet("tcp://127.0.0.1:1/name", 0, 2, 1, torch.device("cpu"))
    assert type(caught.value) is raised and texts[0] in str(caught.value)
