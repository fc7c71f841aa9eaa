"""gRPC on HTTP/2 (h2) and asyncio: server and client of streams whose messages are bytes."""
