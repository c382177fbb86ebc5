"""Serves HTTP requests: dispatches each by its endpoint to the pipeline, a stored response or a local answer."""
