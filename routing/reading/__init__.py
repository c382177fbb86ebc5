"""From bytes to facts: a client's body to a `Request`, a pod's answer to what the next turn will contain.

Pure: no sockets, no HTTP, no second parse. The only place where JSON of clients and pods is understood.
"""

from routing.reading.requests import ParsedRequest, read_request, scoped_name
from routing.reading.responses import ResponseFacts, read_complete, read_response_facts, read_usage, response_bytes
from routing.reading.rewriting import with_fields

__all__ = [
    "ParsedRequest",
    "ResponseFacts",
    "read_complete",
    "read_request",
    "read_response_facts",
    "read_usage",
    "response_bytes",
    "scoped_name",
    "with_fields",
]
