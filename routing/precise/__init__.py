"""The precise prefix index: cached blocks of engines, from the KV events that they publish."""
