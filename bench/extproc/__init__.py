"""What it costs to be Envoy's picker: ours beside a bare handler and beside Envoy alone."""
