"""The worker's errors. Each message is one line, for the operator or for the router."""


class UnusableModel(Exception):
    """The model folder cannot be served: names the file, key or tensor. For the operator."""


class OutOfStep(Exception):
    """A plan is not the one that was due: names both numbers. For the router."""


class BadPlan(Exception):
    """A plan contradicts itself, the slots or the limits: names the field. For the router."""


class PeerLost(Exception):
    """The connection to another rank broke, which has ended or is about to be. For the operator."""


class OtherLimits(Exception):
    """A router wants other limits than this worker is prepared for. For the operator."""


class RunEnded(Exception):
    """The router has left one of several ranks, which then meet anew. For the operator."""


class TooLittleMemory(Exception):
    """The limits ask for more than the device has: names the flags. For the operator."""


# What a worker exits with that ends only since it lost a peer. The launcher knows it, too (launcher/src/child.rs).
PEER_LOST = 3


def one_line(error: Exception) -> str:
    """What it says, without line breaks, as far as a line should be long."""
    return " ".join(str(error).split())[:500]
