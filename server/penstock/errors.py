"""What can be wrong with what the worker was given. Each text is one line for whoever gave it."""


class UnusableModel(Exception):
    """The model folder cannot be served: names the file, key or tensor. For the operator."""


class OutOfStep(Exception):
    """A plan is not the one that was due: names both numbers. For the router."""


class BadPlan(Exception):
    """A plan contradicts itself, the slots or the limits: names the field. For the router."""


class TooLittleMemory(Exception):
    """The limits ask for more than the device has: names the flags. For the operator."""
