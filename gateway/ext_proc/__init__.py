"""The frontend behind Envoy: the gateway as an external processor, which picks pods; Envoy forwards the bytes."""
