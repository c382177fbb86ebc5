"""Annotates pods with `controller.kubernetes.io/pod-deletion-cost`: a process of its own, which may patch pods.

The gateway only reads from Kubernetes and imports nothing of this package but its command.
"""
