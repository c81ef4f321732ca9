"""Binds a servicer to the method names of the contract: what generated gRPC code would do, in one function."""

from typing import Any

import grpc

from penstock.proto import penstock_pb2 as pb


def handlers(servicer: Any) -> grpc.GenericRpcHandler:
    """Binds an object with describe, prepare, run and check to the contract's method names."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        "penstock.v1.Worker",
        {
            "Describe": unary(
                servicer.describe, pb.DescribeRequest.FromString, pb.ModelDescription.SerializeToString
            ),
            "Prepare": unary(servicer.prepare, pb.PrepareRequest.FromString, pb.Prepared.SerializeToString),
            "Run": stream(servicer.run, pb.ToWorker.FromString, pb.StepResult.SerializeToString),
            "Check": unary(servicer.check, pb.CheckRequest.FromString, pb.CheckReply.SerializeToString),
        },
    )
