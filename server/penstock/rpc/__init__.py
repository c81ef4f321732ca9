"""The worker contract over gRPC: plans come in, results go out. Calls `penstock.engine`; nothing below calls it."""
