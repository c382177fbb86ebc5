"""Resume a cut stream on another pod: read what was delivered, request the rest, splice both.

    delivered.py             what the client has been sent, read from its events
    continuation_request.py  the request for the rest, or why there is none (`anthropic.py`: messages as chat)
    continuation.py          both together, and the splicer that fits
    splice.py                events of the continuation, joined to those before
    replay.py                the same answer from its beginning, compared with what was delivered
    token_recovery.py        a continuation behind reasoning, by token ids

Pure: bytes in, values and bytes out; no socket, no clock, no pod.
"""
