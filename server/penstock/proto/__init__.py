"""The worker contract in Python. penstock_pb2 is generated from proto/penstock.proto by generate.py."""
