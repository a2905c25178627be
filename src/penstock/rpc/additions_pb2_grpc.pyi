# What protoc leaves out: the types of additions_pb2_grpc. Made by penstock.rpc.generate; do not edit.
import grpc
import grpc.aio

from penstock.rpc import additions_pb2 as pb

class PenstockControllerServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    prepareTransaction: grpc.UnaryUnaryMultiCallable[pb.PrepareTransactionRequest, pb.PrepareTransactionReply]

class PenstockControllerServiceServicer:
    def prepareTransaction(self, request: pb.PrepareTransactionRequest, context: grpc.ServicerContext) -> pb.PrepareTransactionReply: ...

def add_PenstockControllerServiceServicer_to_server(
    servicer: PenstockControllerServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
