"""Models on the hub, and tokenizers that have to be converted. Must not import torch."""
