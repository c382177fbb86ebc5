"""How true simulated engines are: the same traffic through a real vLLM and through the simulator."""
