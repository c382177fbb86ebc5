"""The precise prefix index: what engines hold, from the KV events that they publish."""
