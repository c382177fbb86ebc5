"""Cascades of models: judging an answer by its first tokens, escalating, calibration and quality guarantees.

    models.py            models of a cascade, their prices and abilities, and the one a request starts with
    judging.py           the verdict on an answer that is held back: accept it or escalate
    signals/             from log-probabilities and complete answers to a few numbers, higher = surer
    logprobs.py          requests log-probabilities, and removes those that the client did not ask for
    tasks.py             from the words of a prompt to its task bucket
    calibration_file.py  result of a calibration: thresholds, the guarantee and its evidence (calibration_json.py)
    calibration/         labelled examples to a calibration file, with the bound of loss_bound.py
    computable.py        which signals and buckets the gateway computes from live traffic
    drift.py             thresholds that follow shadow samples, and the drift alarm; shadow_budget.py limits the samples
    record.py            result of one request; accounts.py sums costs by tenant and model

Pure: no clock, no random draw, no file. May import routing only.
"""
