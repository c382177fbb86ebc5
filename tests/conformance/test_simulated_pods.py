"""Simulated pods on the contracts that real vLLM keeps (tests/vllm/test_conformance.py): same surface, same words."""

from collections.abc import AsyncIterator

import pytest

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.conformance.answers import AnswersContract
from tests.conformance.busy import BusyContract
from tests.conformance.continuing import ContinuingContract
from tests.conformance.measures import MeasuresContract
from tests.conformance.refusals import RefusalsContract
from tests.conformance.silence import SilenceContract
from tests.conformance.streams import StreamsContract
from tests.conformance.subject import Subject, acquaint
from tests.conformance.surface import SurfaceContract
from tests.conformance.thinking import CallingContract, ThinkingContract

# Fast, but no faster than that a head can be seen to come before the first token.
PROFILE = Profile(prefill_tokens_per_s=20_000, step_base_s=0.002, kv_capacity_tokens=16_384, block_size=32)


class OfAPlainPod:
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with SimulatedPod(Options(PROFILE, max_model_len=2048)) as pod:
            yield await acquaint(pod.url)


class TestSurface(OfAPlainPod, SurfaceContract): ...


class TestAnswers(OfAPlainPod, AnswersContract): ...


class TestStreams(OfAPlainPod, StreamsContract): ...


class TestContinuing(OfAPlainPod, ContinuingContract): ...


class TestRefusals(OfAPlainPod, RefusalsContract): ...


class TestMeasures(OfAPlainPod, MeasuresContract): ...


class TestCalling(OfAPlainPod, CallingContract): ...


class OfAThinkingPod:
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with SimulatedPod(Options(PROFILE, max_model_len=2048, max_reasoning_tokens=30, calls_tools=True)) as pod:
            yield await acquaint(pod.url)


class TestThinking(OfAThinkingPod, ThinkingContract): ...


class TestThinkingOfCalls(OfAThinkingPod, CallingContract): ...


class OfATersePod:
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        options = Options(PROFILE, max_model_len=2048, reports_cached_tokens=False, max_num_queued_reqs=4)
        async with SimulatedPod(options) as pod:
            yield await acquaint(pod.url)


class TestSilence(OfATersePod, SilenceContract): ...


class TestBusy(OfATersePod, BusyContract): ...
