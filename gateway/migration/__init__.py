"""Reads the configuration files of other gateways and writes Hearth's. Pure: text in, values out."""
