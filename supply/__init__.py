"""How many engines each pool should have: pure decisions from load, objectives, prices and time.

Imports values of `routing` only. The gateway collects the load and publishes the figures; the simulator runs the same
code.
"""
