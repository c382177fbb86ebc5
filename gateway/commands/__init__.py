"""The commands of `hearth`, one module each, imported only when called."""
