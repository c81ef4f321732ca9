"""Triton's interpreter, so that kernels for GPUs run here. Import this before anything that imports triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
