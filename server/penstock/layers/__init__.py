"""Layers of the models: each holds its weights and calls `penstock_kernels`."""
