"""`hearth agent`: runs beside vLLM servers on a GPU node, and registers what it finds there. No gateway imports it."""
