"""Labelled examples to a calibration file: which answers of which model may be kept, and what is guaranteed."""
