"""Pods, gateways and Redis killed, paused, cut and corrupted by chance while clients ask: nobody may notice."""
