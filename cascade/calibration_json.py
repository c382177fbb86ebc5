"""Calibration files as JSON, written and read. The reader reports every error at once, each with its path.

Strict where a mistake could void a guarantee: unknown keys, a newer version, thresholds of models that do not exist. A
threshold of null accepts no answer, since JSON has no infinity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from math import inf

from cascade.calibration_file import (
    TENTHS,
    AcceptanceThreshold,
    BenefitCurve,
    CalibrationEvidence,
    CalibrationFile,
    Comparison,
    QualityGuarantee,
    ReferenceOutcomes,
    SignalStage,
)
from cascade.loss_bound import min_examples
from cascade.signals.combination import COMBINED, COMBINED_INPUTS, SignalCombination

VERSION = 1

MAX_BYTES = 4_000_000
"""Bytes."""

MAX_NUMBER = 1e300
"""Whole numbers of JSON may be larger than any float."""

MIN_SHARE = 1e-6
"""Of quality lost, or of confidence: below it no number of examples could show anything."""

MAX_THRESHOLDS = 1_024
"""A request looks through all of them."""

FIELD_NAMES = {
    "": frozenset({"version", "models", "signal", "stage", "promise", "evidence", "cuts", "is_promised", "reference"})
    | {"combinations"},
    "promise": frozenset(field.name for field in fields(QualityGuarantee)),
    "evidence": frozenset(field.name for field in fields(CalibrationEvidence)),
    "cut": frozenset(field.name for field in fields(AcceptanceThreshold)),
    "map": frozenset(field.name for field in fields(BenefitCurve)),
    "combination": frozenset(field.name for field in fields(SignalCombination)),
    "reference": frozenset(field.name for field in fields(ReferenceOutcomes)),
}


SUREST_KEYS = ("surest", "surest_worse", "surest_better")
"""Of a reference, those that a file of an older gateway does not have."""


class InvalidCalibrationFile(ValueError):  # noqa: N818 - it carries a verdict on a file
    """A calibration file with faults; all of them, `PATH: what is wrong` each."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def write_calibration_file(file: CalibrationFile) -> bytes:
    """Readable JSON; the same file gives the same bytes."""
    cuts = [{**asdict(cut), "threshold": None if cut.threshold == inf else cut.threshold} for cut in file.cuts]
    body = {"version": VERSION, **asdict(file), "cuts": cuts}
    if not file.combinations:  # An older gateway rejects the key.
        del body["combinations"]
    body["reference"] = [_reference_body(entry) for entry in file.reference]
    return (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()


def _reference_body(entry: ReferenceOutcomes) -> dict[str, object]:
    body = asdict(entry)
    if not entry.surest:  # An older gateway rejects the keys.
        for name in SUREST_KEYS:
            del body[name]
    return body


def read_calibration_file(raw: bytes) -> CalibrationFile:
    """What was written. Raises `InvalidCalibrationFile`."""
    if len(raw) > MAX_BYTES:
        raise InvalidCalibrationFile((f"a ladder file has at most {MAX_BYTES:,} bytes",))
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as fault:
        raise InvalidCalibrationFile((f"no JSON: {fault}",)) from None
    reader = _Reader()
    file = reader.file(reader.mapping(body, "", FIELD_NAMES[""]))
    if reader.faults:
        raise InvalidCalibrationFile(tuple(reader.faults))
    return file


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _is_share(part: float) -> bool:
    return MIN_SHARE <= part <= 1.0 - MIN_SHARE


class _Reader:
    """Collects faults, and continues with a harmless value after each."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, path: str, words: str) -> None:
        self.faults.append(f"{path or 'file'}: {words}")

    def file(self, body: Mapping[str, object]) -> CalibrationFile:
        if body.get("version") != VERSION:
            self.fault("version", f"must be {VERSION}, found {body.get('version')!r}")
        models = tuple(self.text(name, f"models[{at}]") for at, name in enumerate(self.items(body, "models")))
        if len(models) < 2 or len(set(models)) < len(models):
            self.fault("models", "must name two rungs or more, none twice")
        evidence = self.mapping(body.get("evidence"), "evidence", FIELD_NAMES["evidence"])
        found = CalibrationFile(
            models=models,
            signal=self.text(body.get("signal"), "signal"),
            stage=self.stage(body.get("stage")),
            promise=self.promise(self.mapping(body.get("promise"), "promise", FIELD_NAMES["promise"])),
            evidence=self.evidence(evidence),
            cuts=tuple(self.cuts(body, len(models) - 1)),
            is_promised=self.truth(body.get("is_promised", False), "is_promised"),
            reference=tuple(self.reference(body, len(models) - 1)),
            combinations=tuple(self.combinations(body)),
        )
        if len(found.combinations) != (len(models) - 1) * (found.signal == COMBINED):
            self.fault("combinations", f"must be one for each rung below the top where the signal is `{COMBINED}`")
        if found.is_promised:
            self._bear_out(found)
        return found

    def _bear_out(self, file: CalibrationFile) -> None:
        """A guarantee that its own evidence contradicts was not written by us."""
        if file.evidence.needs is not None:
            self.fault("is_promised", f"is true, and evidence.needs says that {file.evidence.needs} examples would do")
        if file.evidence.loss > file.promise.max_loss:
            self.fault("is_promised", "is true, and evidence.loss is above promise.max_loss")
        promise = file.promise
        is_share = _is_share(promise.max_loss) and _is_share(promise.confidence)
        least = min_examples(promise.max_loss, 1.0 - promise.confidence) if is_share else 0
        if file.evidence.examples < least:
            words = (
                f"is true, and evidence.examples is {file.evidence.examples}: with fewer than {least} nothing shows it"
            )
            self.fault("is_promised", words)

    def promise(self, body: Mapping[str, object]) -> QualityGuarantee:
        max_loss = self.number(body.get("max_loss"), "promise.max_loss")
        confidence = self.number(body.get("confidence"), "promise.confidence")
        for name, part in (("max_loss", max_loss), ("confidence", confidence)):
            if not _is_share(part):
                self.fault(f"promise.{name}", f"must be between 0 and 1, {MIN_SHARE:g} away from both")
        return QualityGuarantee(max_loss, confidence)

    def evidence(self, body: Mapping[str, object]) -> CalibrationEvidence:
        numbers = {
            name: self.number(body[name], f"evidence.{name}")
            for name in sorted(FIELD_NAMES["evidence"] - {"examples", "needs", "fingerprint"})
            if name in body
        }
        if not 0.0 <= numbers.get("kept", 0.0) <= 1.0:
            self.fault("evidence.kept", "must be from 0 to 1")
        needs = body.get("needs")
        return CalibrationEvidence(
            examples=self.count(body.get("examples"), "evidence.examples"),
            fingerprint=self.text(body.get("fingerprint"), "evidence.fingerprint"),
            needs=None if needs is None else self.count(needs, "evidence.needs"),
            **numbers,
        )

    def cuts(self, body: Mapping[str, object], steps: int) -> Iterator[AcceptanceThreshold]:
        seen: set[tuple[int, str]] = set()
        items = self.items(body, "cuts")
        if len(items) > MAX_THRESHOLDS:
            self.fault("cuts", f"are {len(items)}, {MAX_THRESHOLDS} at most")
        for at, item in enumerate(items[:MAX_THRESHOLDS]):
            path = f"cuts[{at}]"
            cut = self.cut(self.mapping(item, path, FIELD_NAMES["cut"]), path)
            if cut.rung >= steps:
                self.fault(f"{path}.rung", f"must be below {steps}: the top rung has no next one")
            if (cut.rung, cut.bucket) in seen:
                self.fault(path, f"rung {cut.rung} and bucket `{cut.bucket}` stand twice")
            seen.add((cut.rung, cut.bucket))
            yield cut

    def cut(self, body: Mapping[str, object], path: str) -> AcceptanceThreshold:
        threshold, edge = body.get("threshold"), body.get("edge")
        grey = self.number(body.get("grey", 0.0), f"{path}.grey")
        share = self.number(body.get("edge_share", 0.0), f"{path}.edge_share")
        if not 0.0 <= share <= 1.0:
            self.fault(f"{path}.edge_share", "must be from 0 to 1")
        if grey < 0.0:
            self.fault(f"{path}.grey", "must not be negative")
        if "threshold" not in body:
            self.fault(f"{path}.threshold", "is missing; null keeps nothing")
        above = tuple(
            self.number(item, f"{path}.above[{place}]") for place, item in enumerate(self.items(body, "above", path))
        )
        if above and (len(above) != TENTHS or any(left > right for left, right in pairwise(above))):
            self.fault(f"{path}.above", f"must have {TENTHS} numbers that do not fall")
        return AcceptanceThreshold(
            rung=self.count(body.get("rung"), f"{path}.rung"),
            bucket=self.text(body.get("bucket"), f"{path}.bucket"),
            threshold=inf if threshold is None else self.number(threshold, f"{path}.threshold"),
            grey=grey,
            map=self.map(self.mapping(body.get("map", {}), f"{path}.map", FIELD_NAMES["map"]), f"{path}.map"),
            edge=None if edge is None else self.number(edge, f"{path}.edge"),
            edge_share=share,
            above=above,
        )

    def reference(self, body: Mapping[str, object], steps: int) -> Iterator[ReferenceOutcomes]:
        """Yield the outcomes of comparisons; at most one entry per model and comparison."""
        seen: set[tuple[int, Comparison]] = set()
        for at, item in enumerate(self.items(body, "reference")[:MAX_THRESHOLDS]):
            path = f"reference[{at}]"
            entry = self.mapping(item, path, FIELD_NAMES["reference"])
            index, comparison = self.count(entry.get("rung"), f"{path}.rung"), entry.get("comparison")
            if not isinstance(comparison, str) or comparison not in set(Comparison):
                self.fault(f"{path}.comparison", f"must be one of {', '.join(Comparison)}")
                continue
            judged, samples = (self.count(entry.get(name), f"{path}.{name}") for name in ("judged", "samples"))
            worse, better = (self.number(entry.get(name), f"{path}.{name}") for name in ("worse", "better"))
            if index >= steps:
                self.fault(f"{path}.rung", f"must be below {steps}: the top rung has no next one")
            if min(worse, better) < 0.0 or worse + better > samples + 1e-6 or samples > judged:
                self.fault(path, "must have worse + better <= samples <= judged, none of them negative")
            surest = self.count(entry.get("surest", 0), f"{path}.surest")
            own = tuple(self.number(entry.get(name, 0.0), f"{path}.{name}") for name in SUREST_KEYS[1:])
            if min(own) < 0.0 or sum(own) > surest + 1e-6 or own[0] > worse + 1e-6 or surest > samples:
                self.fault(f"{path}.surest", "must count some of the samples, and of their worse and better ones")
            found = ReferenceOutcomes(index, Comparison(comparison), judged, samples, worse, better, surest, *own)
            if (index, found.comparison) in seen:
                self.fault(path, f"rung {index} and comparison `{comparison}` stand twice")
            seen.add((index, found.comparison))
            yield found

    def combinations(self, body: Mapping[str, object]) -> Iterator[SignalCombination]:
        """Yield the combinations of signals, by model."""
        for at, item in enumerate(self.items(body, "combinations")[:MAX_THRESHOLDS]):
            path = f"combinations[{at}]"
            entry = self.mapping(item, path, FIELD_NAMES["combination"])
            inputs = tuple(
                self.text(name, f"{path}.inputs[{place}]")
                for place, name in enumerate(self.items(entry, "inputs", path))
            )
            if unknown := [name for name in inputs if name not in COMBINED_INPUTS]:
                self.fault(f"{path}.inputs", f"must be of {', '.join(COMBINED_INPUTS)}, found `{unknown[0]}`")
            weights, means = (
                tuple(
                    self.number(number, f"{path}.{name}[{place}]")
                    for place, number in enumerate(self.items(entry, name, path))
                )
                for name in ("weights", "means")
            )
            if not len(inputs) == len(weights) == len(means):
                self.fault(path, "must have as many weights and means as inputs")
                continue
            yield SignalCombination(inputs, weights, means, self.number(entry.get("intercept"), f"{path}.intercept"))

    def map(self, body: Mapping[str, object], path: str) -> BenefitCurve:
        signals, benefits = (
            tuple(self.number(item, f"{path}.{name}[{at}]") for at, item in enumerate(self.items(body, name, path)))
            for name in ("signals", "benefits")
        )
        if len(signals) != len(benefits):
            self.fault(path, "must have as many benefits as signals")
        if any(left >= right for left, right in pairwise(signals)):
            self.fault(f"{path}.signals", "must rise")
        if any(left < right for left, right in pairwise(benefits)):
            self.fault(f"{path}.benefits", "must not rise")
        return BenefitCurve(signals, benefits)

    def mapping(self, value: object, path: str, words: frozenset[str]) -> Mapping[str, object]:
        if not isinstance(value, dict):
            self.fault(path, "must be a mapping")
            return {}
        for word in value:
            if word not in words:
                self.fault(f"{path}.{word}".lstrip("."), f"is unknown here; expected one of {', '.join(sorted(words))}")
        return value

    def items(self, body: Mapping[str, object], name: str, path: str = "") -> list[object]:
        value = body.get(name, [])
        if not isinstance(value, list):
            self.fault(f"{path}.{name}".lstrip("."), "must be a list")
            return []
        return value

    def text(self, value: object, path: str) -> str:
        if not isinstance(value, str) or not value:
            self.fault(path, "must be text")
            return ""
        return value

    def number(self, value: object, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER < value < MAX_NUMBER:
            self.fault(path, "must be a number")
            return 0.5
        return float(value)

    def count(self, value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fault(path, "must be a whole number from 0 on")
            return 0
        return value

    def truth(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            self.fault(path, "must be true or false")
            return False
        return value

    def stage(self, value: object) -> SignalStage:
        if isinstance(value, str) and value in set(SignalStage):
            return SignalStage(value)
        self.fault("stage", f"must be one of {', '.join(SignalStage)}")
        return SignalStage.WINDOW
