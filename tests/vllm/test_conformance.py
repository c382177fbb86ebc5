"""The contracts that the gateway relies on, tried on real vLLM: simulated pods are tried on the same ones."""

import pytest

from tests.conformance.answers import AnswersContract
from tests.conformance.busy import BusyContract
from tests.conformance.continuing import ContinuingContract
from tests.conformance.measures import MeasuresContract
from tests.conformance.refusals import RefusalsContract
from tests.conformance.silence import SilenceContract
from tests.conformance.streams import StreamsContract
from tests.conformance.subject import Subject, acquaint
from tests.conformance.surface import SurfaceContract
from tests.vllm.pods import Pod


class TestSurface(SurfaceContract): ...


class TestAnswers(AnswersContract): ...


class TestStreams(StreamsContract): ...


class TestContinuing(ContinuingContract): ...


class TestRefusals(RefusalsContract): ...


class TestMeasures(MeasuresContract): ...


class OfTheTersePod:
    @pytest.fixture
    async def subject(self, terse_pod: Pod) -> Subject:
        return await acquaint(terse_pod.url)


class TestSilence(OfTheTersePod, SilenceContract): ...


class TestBusy(OfTheTersePod, BusyContract): ...
