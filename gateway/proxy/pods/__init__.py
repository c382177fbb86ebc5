"""The pod's side: connections, kept alive, and what a pod says when it says no."""
