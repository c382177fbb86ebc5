"""Pods on trial: their share of requests, how they are compared with the standing pods, and the verdict."""
