"""gRPC over HTTP/2 as a server speaks it with Envoy, for the price of its frames.

grpc.aio takes most of what a picker costs; this is what is left when every stream is a few method calls.
"""
