"""A pod's answer on its way to the client: streams, whole bodies, and what is watched, kept or taken out on it."""
