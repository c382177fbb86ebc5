"""What accounts have used and what they still may: windows, budgets, reservations, and slices of them for replicas.

Pure: time is an argument, in seconds since the epoch that never go back. Grants are dated when they are made.
"""
