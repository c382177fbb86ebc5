"""OpenTelemetry traces: sampling, spans from the record of a request, export. Loaded only where configured."""
