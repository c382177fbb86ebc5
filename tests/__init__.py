"""The tests mirror the tree; folders below are named after what they test."""
