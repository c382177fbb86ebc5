"""One gateway in several processes: a supervisor, workers that share the traffic port, and the index process.

The supervisor starts and replaces them and owns the metrics port and the admin port. No request passes through it.
"""
