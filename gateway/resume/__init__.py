"""A stream that was cut, gone on with at another pod: what was said is read, the rest is asked for, both are joined.

Pure: bytes in, values and bytes out. Knows no socket, no clock and no pod.
"""
