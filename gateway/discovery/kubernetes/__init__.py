"""Pods as Kubernetes knows them: what its API server is asked, what is kept of it, and what that says of pods."""
