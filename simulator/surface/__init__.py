"""vLLM's HTTP surface over a simulated pod: one module for each API."""
