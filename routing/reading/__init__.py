"""From bytes to facts: a client's body to a `Request`, a pod's answer to what the next turn will contain.

Pure: no sockets, no HTTP, no second parse. The only place where JSON of clients and pods is understood.
"""

from routing.reading.requests import ParsedRequest, read_request, scoped_name
from routing.reading.responses import ResponseFacts, read_complete, read_response_facts, read_usage, response_bytes
from routing.reading.rewriting import with_fields

__all__ = [
    "ResponseFacts",
    "ParsedRequest",
    "response_bytes",
    "scoped_name",
    "read_response_facts",
    "read_request",
    "read_usage",
    "read_complete",
    "with_fields",
]
