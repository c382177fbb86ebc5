"""What every part of the process uses: guarded callbacks, listening sockets, TLS, log lines, the Redis client."""
