"""Replica sync: gateways of one fleet exchange updates, on one host through the index process, between hosts by Redis.

A worker sends its placements, first tokens and results as batches of updates (`sync`). The hub of its host passes them
to the other workers and keeps a history for workers that start later. `redis_bridge` carries them to other hosts.
"""
