"""Ladders of models: what an answer's first tokens say of it, what climbing is worth, and promises about quality.

    ladder.py        the rungs of a ladder, what they cost and can do, how much of an answer is held back
    verdict.py       keep or escalate: one rung's answer judged by the ladder file
    starting.py      the lowest rung that can take a request, and whether its prompt says to start higher
    ladder_file.py   what calibration found: thresholds, maps, the promise and its evidence (written and read as JSON)
    signals/         from log-probabilities and whole answers to a few numbers, higher = surer
    tasks/           from the words of a prompt to the bucket of tasks it belongs to
    calibration/     labelled examples to a ladder file: isotonic maps, thresholds tested one after the other, bounds
    staying/         shadow samples, thresholds that follow them within bounds, the alarm when they drift
    accounts.py      what answers cost by tenant and rung, and what they would have cost

Pure: no clock, no draw, no file. May import routing only.
"""
