"""From bytes to facts: a client's body to a `Request`, a pod's answer to what the next turn will contain.

Pure: no sockets, no HTTP, no second parse. The only place where JSON of clients and pods is understood.
"""

from routing.reading.requests import Reading, owned, read_request
from routing.reading.responses import AnswerFacts, answer_bytes, read_facts, read_usage, read_whole
from routing.reading.rewriting import with_fields

__all__ = [
    "AnswerFacts",
    "Reading",
    "answer_bytes",
    "owned",
    "read_facts",
    "read_request",
    "read_usage",
    "read_whole",
    "with_fields",
]
