"""Diagnosis of the fleet at run time: collects facts beside the request path, keeps, shows and applies findings."""
