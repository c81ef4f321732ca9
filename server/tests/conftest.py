"""Triton's kernels are interpreted where there is no GPU, which has to be said before anything imports it."""

import os

if os.environ.get("PENSTOCK_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
