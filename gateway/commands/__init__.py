"""The commands of `hearth`, one a file, loaded only when called."""
