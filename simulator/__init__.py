"""Simulated vLLM pods and the replay of traces over the real core."""
