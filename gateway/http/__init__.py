"""The HTTP shell: bytes of a client in, bytes of a pod out."""
