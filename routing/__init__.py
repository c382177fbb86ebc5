"""The gateway's model of requests, pods and engines, and the choice of an engine. Pure: no I/O, time is an argument."""
