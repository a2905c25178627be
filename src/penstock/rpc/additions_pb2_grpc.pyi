# What protoc leaves out: the types of additions_pb2_grpc. Made by penstock.rpc.generate; do not edit.
import grpc
import grpc.aio

from penstock.rpc import additions_pb2 as pb

class PenstockControllerServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    prepareTransaction: grpc.UnaryUnaryMultiCallable[pb.PrepareTransactionRequest, pb.PrepareTransactionReply]
    describeTransaction: grpc.UnaryUnaryMultiCallable[pb.DescribeTransactionRequest, pb.TransactionDescription]
    listOpenTransactions: grpc.UnaryUnaryMultiCallable[pb.OpenTransactionsRequest, pb.OpenTransactionsReply]
    explainRetention: grpc.UnaryUnaryMultiCallable[pb.ExplainRetentionRequest, pb.RetentionExplanation]
    describeReaderGroups: grpc.UnaryUnaryMultiCallable[pb.DescribeReaderGroupsRequest, pb.DescribeReaderGroupsReply]

class PenstockControllerServiceServicer:
    def prepareTransaction(self, request: pb.PrepareTransactionRequest, context: grpc.ServicerContext) -> pb.PrepareTransactionReply: ...
    def describeTransaction(self, request: pb.DescribeTransactionRequest, context: grpc.ServicerContext) -> pb.TransactionDescription: ...
    def listOpenTransactions(self, request: pb.OpenTransactionsRequest, context: grpc.ServicerContext) -> pb.OpenTransactionsReply: ...
    def explainRetention(self, request: pb.ExplainRetentionRequest, context: grpc.ServicerContext) -> pb.RetentionExplanation: ...
    def describeReaderGroups(self, request: pb.DescribeReaderGroupsRequest, context: grpc.ServicerContext) -> pb.DescribeReaderGroupsReply: ...

def add_PenstockControllerServiceServicer_to_server(
    servicer: PenstockControllerServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
