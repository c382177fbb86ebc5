"""`hearth agent`: runs beside vLLM servers on a GPU node and registers them for gateways.

Of the gateway it imports `runtime` and the parsers of `config` only; nothing in `gateway` imports it.
"""
