"""The shell behind Envoy: the same gateway as an external processor, which picks pods and does not carry bytes."""
