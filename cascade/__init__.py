"""Ladders of models: confidence, calibration and when to climb a rung."""
