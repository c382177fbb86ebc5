"""Endpoints outside the fleet: what may be sent there, in which form, within which limits, and how they are doing.

gate.py        the one place where a request may leave the fleet: policy, switch, parallel requests, share, money
bodies.py      the fields that go out, and nothing else
translation.py bodies and answers between the two wire formats: `chat_to_messages.py`, `messages_to_chat.py`
exchange.py    a provider's response on its way to the relay: errors, translation
sender.py      one attempt at an endpoint; `HttpTransport` hands those over
monitor.py     their standing in the fleet: breakers, `Retry-After`, the switch
"""
