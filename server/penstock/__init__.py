"""Penstock's worker: holds a model's weights and executes step plans. `penstock.worker` is the process' main."""
