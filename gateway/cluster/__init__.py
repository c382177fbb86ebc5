"""One gateway in several processes: a supervisor, workers that share the traffic port, and the warmth process.

The supervisor starts and replaces them, owns the metrics and the admin port, and does nothing per request.
"""
