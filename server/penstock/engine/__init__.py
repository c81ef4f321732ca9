"""Executes step plans: slots, KV cache, attention metadata, sampling. Knows no gRPC; calls `penstock.models`."""
