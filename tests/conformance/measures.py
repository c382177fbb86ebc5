"""What a pod tells of itself in /metrics: the names, labels and meanings that the gateway scrapes."""

import asyncio

import pytest

from tests.conformance.subject import APIS, CHAT, PATIENCE_S, Subject, samples
from tests.conformance.wire import spell

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens"),
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
)
FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)


async def value(subject: Subject, name: str, **labels: str) -> float:
    (sample,) = [sample for sample in (await samples(subject))[name] if labels.items() <= sample.labels.items()]
    return sample.value


async def until(subject: Subject, name: str, wanted: float) -> None:
    """Ask again until a gauge stands where it should; each question is a round trip, so this is no busy loop."""
    async with asyncio.timeout(PATIENCE_S):
        while await value(subject, name) != wanted:
            pass


class MeasuresContract:
    """Tried on a pod by a test class of its own that inherits it."""

    async def test_every_name_that_is_scraped_is_there(self, subject: Subject) -> None:
        """Each with the engine's number and the model's name."""
        await subject.ask(CHAT)
        found = await samples(subject)
        names = (
            *GAUGES,
            *(f"{name}_total" for name in COUNTERS),
            *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
        )
        assert set(names) <= set(found)
        for name in names:
            for sample in found[name]:
                assert (sample.labels["engine"], sample.labels["model_name"]) == ("0", subject.model)

    async def test_the_cache_reports_its_size(self, subject: Subject) -> None:
        """Block size, number of blocks and their product stand in the labels of one gauge."""
        (sample,) = (await samples(subject))["cache_config_info"]
        labels = sample.labels
        assert sample.value == 1
        assert labels["engine"] == "0"
        assert int(labels["block_size"]) == subject.block_tokens
        assert int(labels["kv_cache_size_tokens"]) == int(labels["num_gpu_blocks"]) * subject.block_tokens
        assert labels["enable_prefix_caching"] == "True"

    async def test_prompt_tokens_and_warm_ones_are_counted(self, subject: Subject) -> None:
        """The sums say over all requests what each usage says of one."""
        prompt = subject.prompt(300)
        before = await samples(subject)
        usages = [(await subject.ask(CHAT, prompt, tokens=4))["usage"] for _ in range(2)]
        after = await samples(subject)

        def grown(name: str) -> float:
            return after[name][0].value - before[name][0].value

        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert cached > 0
        assert grown("prefix_cache_hits_total") == grown("prompt_tokens_cached_total") == cached
        requested = sum(usage["prompt_tokens"] for usage in usages)
        assert grown("prefix_cache_queries_total") == grown("prompt_tokens_total") == requested
        assert grown("generation_tokens_total") == 8
        assert grown("time_to_first_token_seconds_count") == 2

    async def test_ends_are_counted_by_reason(self, subject: Subject) -> None:
        """An answer cut by its limit ended by length."""
        before = await value(subject, "request_success_total", finished_reason="length")
        await subject.ask(CHAT)
        assert await value(subject, "request_success_total", finished_reason="length") == before + 1

    async def test_first_tokens_fall_into_vllms_buckets(self, subject: Subject) -> None:
        """Our own histogram has the same bounds, so the two can be compared."""
        bounds = [sample.labels["le"] for sample in (await samples(subject))["time_to_first_token_seconds_bucket"]]
        assert [float(bound) for bound in bounds[:-1]] == list(FIRST_TOKEN_BUCKETS_S)
        assert bounds[-1] == "+Inf"

    @pytest.mark.parametrize("path", APIS)
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_leaves_stops_its_request(self, subject: Subject, path: str, stream: bool) -> None:
        """Cutting the connection is how a request is told to stop, streamed or not; nobody counts it as a success."""
        requested = subject.request(path, tokens=subject.context_tokens // 2, stream=stream, ignore_eos=True)
        reader, writer = await subject.connect()
        try:
            writer.write(spell("POST", path, requested, {"Content-Type": "application/json"}))
            await until(subject, "num_requests_running", 1)
            ended = await value(subject, "request_success_total", finished_reason="length")
            assert not reader.at_eof(), "it is we who leave"
        finally:
            writer.close()
            await writer.wait_closed()
        await until(subject, "num_requests_running", 0)
        assert await value(subject, "request_success_total", finished_reason="length") == ended
