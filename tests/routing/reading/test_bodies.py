"""Which fields of which API become which facts."""

import pytest

from routing.reading.bodies import BODIES
from routing.request import Api
from tests.routing.reading.wire import Json, canonical, request_of

HI: list[Json] = [{"role": "user", "content": "Hi"}]

SMALLEST: dict[Api, Json] = {
    Api.CHAT: {"messages": HI},
    Api.COMPLETIONS: {"prompt": "Hi"},
    Api.RESPONSES: {"input": "Hi"},
    Api.MESSAGES: {"messages": HI, "max_tokens": 5},
    Api.EMBEDDINGS: {"input": "Hi"},
    Api.POOLING: {"input": "Hi"},
    Api.CLASSIFY: {"input": "Hi"},
    Api.RERANK: {"query": "Hi", "documents": ["Ho"]},
    Api.SCORE: {"text_1": "Hi", "text_2": "Ho"},
}


def test_every_api_has_its_body() -> None:
    """No API is without a reading."""
    assert set(BODIES) == set(Api)


@pytest.mark.parametrize("api", list(SMALLEST))
def test_the_smallest_body_of_each_api_is_read(api: Api) -> None:
    """Model and prompt, and the usual for all else."""
    request = request_of(api, {"model": "m"} | SMALLEST[api])
    assert (request.model, request.api, request.id) == ("m", api, "req-1")
    assert request.prompt.size == len(canonical(api, SMALLEST[api])) > 0
    assert not request.stream
    assert request.sequences == 1
    assert request.session is request.continues is None


@pytest.mark.parametrize("api", [Api.TOKENIZE, Api.DETOKENIZE])
def test_tokenising_puts_nothing_on_an_engine(api: Api) -> None:
    """A prompt that is only counted is computed nowhere, so it makes nobody warm."""
    assert request_of(api, {"model": "m", "prompt": "Hi", "messages": HI, "tokens": [1]}).prompt.size == 0


@pytest.mark.parametrize(
    ("api", "fields", "limit"),
    [
        (Api.CHAT, {}, None),
        (Api.CHAT, {"max_tokens": 7}, 7),
        (Api.CHAT, {"max_completion_tokens": 8}, 8),
        (Api.CHAT, {"max_tokens": 7, "max_completion_tokens": 8}, 8),
        (Api.CHAT, {"max_tokens": 7, "max_completion_tokens": None}, 7),
        (Api.COMPLETIONS, {}, 16),
        (Api.COMPLETIONS, {"max_tokens": None}, None),
        (Api.COMPLETIONS, {"max_tokens": 7}, 7),
        (Api.RESPONSES, {"max_output_tokens": 7}, 7),
        (Api.RESPONSES, {"max_tokens": 7}, None),
        (Api.MESSAGES, {"max_tokens": 7}, 7),
        (Api.EMBEDDINGS, {"max_tokens": 7}, None),
    ],
)
def test_the_limit_of_an_answer_is_read(api: Api, fields: Json, limit: int | None) -> None:
    """Each API's own word for it, with the precedence and defaults of the engine."""
    body = {"model": "m"} | SMALLEST[api]
    body.pop("max_tokens", None)
    assert request_of(api, body | fields).max_tokens == limit


@pytest.mark.parametrize("api", list(SMALLEST))
def test_only_what_generates_streams(api: Api) -> None:
    """`stream` counts where answers are decoded, and nowhere else."""
    body = {"model": "m"} | SMALLEST[api]
    assert request_of(api, body | {"stream": True}).stream == api.generates
    assert not request_of(api, body | {"stream": False}).stream
    assert not request_of(api, body | {"stream": None}).stream


def test_copies_are_sequences() -> None:
    """`n` answers are n sequences; a null is one."""
    assert request_of(Api.CHAT, {"model": "m", "messages": HI, "n": 4}).sequences == 4
    assert request_of(Api.CHAT, {"model": "m", "messages": HI, "n": None}).sequences == 1
    assert request_of(Api.RESPONSES, {"model": "m", "input": "Hi", "n": 4}).sequences == 1


SHAPING: dict[Api, list[Json]] = {
    Api.CHAT: [
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"text": "a"}]},
        {"mm_processor_kwargs": {"fps": 2}},
        {"reasoning_effort": "low"},
        {"truncate_prompt_tokens": 10},
    ],
    Api.COMPLETIONS: [{"truncate_prompt_tokens": 10}, {"add_special_tokens": False}],
    Api.RESPONSES: [
        {"reasoning": {"effort": "low"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"mm_processor_kwargs": {"fps": 2}},
        {"previous_input_messages": [{"role": "user"}]},
        {"previous_response_id": "resp_1"},
        {"previous_response_id": "resp_2"},
    ],
    Api.MESSAGES: [
        {"thinking": {"type": "enabled", "budget_tokens": 100}},
        {"output_config": {"effort": "low"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
    Api.EMBEDDINGS: [{"truncate_prompt_tokens": 10}, {"add_special_tokens": False}, {"chat_template": "x"}],
    Api.RERANK: [{"instruction": "x"}, {"chat_template_kwargs": {"a": 1}}],
}


@pytest.mark.parametrize("api", list(SHAPING))
def test_what_shapes_the_prompt_separates_it(api: Api) -> None:
    """Equal texts under different templates, efforts or models are different prompts from their first block on."""
    body = {"model": "m"} | SMALLEST[api]
    bodies = [body, body | {"model": "other"}, *(body | fields for fields in SHAPING[api])]
    seeds = [request_of(api, each).prompt.seed for each in bodies]
    assert len(set(seeds)) == len(bodies)
    assert request_of(api, body | {"temperature": 0.5, "stop": ["x"], "seed": 7}).prompt.seed == seeds[0]


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}
INLINE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}


@pytest.mark.parametrize(
    ("api", "fields", "reads", "shows", "counts"),
    [
        (Api.CHAT, {}, True, True, True),
        (Api.CHAT, {"prompt_logprobs": None, "echo": False, "truncate_prompt_tokens": None}, True, True, True),
        (Api.CHAT, {"reasoning_effort": "low"}, True, True, True),
        (Api.CHAT, {"prompt_logprobs": 0}, False, False, True),
        (Api.CHAT, {"chat_template": "{{ now() }}"}, True, False, False),
        (Api.CHAT, {"documents": [{"text": "a"}]}, True, False, False),
        (Api.CHAT, {"truncate_prompt_tokens": 1}, True, False, False),
        (Api.CHAT, {"messages": [INLINE]}, True, True, True),
        (Api.CHAT, {"messages": [IMAGE]}, True, False, True),
        (Api.COMPLETIONS, {"echo": True}, False, False, True),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, True, False, True),
        (Api.COMPLETIONS, {"truncate_prompt_tokens": 1}, True, False, False),
        (Api.RERANK, {}, True, True, False),
    ],
)
def test_what_usage_says_of_a_prompt_depends_on_its_body(
    api: Api, fields: Json, reads: bool, shows: bool, counts: bool
) -> None:
    """Whether its engine looks it up in the cache, whether usage shows what that held, and how long its text is."""
    request = request_of(api, {"model": "m"} | SMALLEST[api] | fields)
    assert (request.reads_cache, request.shows_cache, request.counts_text) == (reads, shows, counts)


@pytest.mark.parametrize(("value", "searches"), [(None, False), (False, False), (True, True)])
def test_answers_of_a_beam_search_come_at_their_end(value: bool | None, searches: bool) -> None:
    """Streamed or not: their engine is silent for as long."""
    for api in (Api.CHAT, Api.COMPLETIONS):
        request = request_of(api, {"model": "m"} | SMALLEST[api] | {"stream": True, "use_beam_search": value})
        assert (request.is_beam_search, request.holds_back) == (searches, searches)


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_tools_are_part_of_the_prompt(api: Api) -> None:
    """Tools count, by size too, and none is none however it is said."""
    body = {"model": "m"} | SMALLEST[api]
    bare, with_tools = request_of(api, body).prompt, request_of(api, body | {"tools": TOOLS}).prompt
    assert with_tools.size > bare.size + 40
    assert with_tools.seed == bare.seed
    assert request_of(api, body | {"tools": []}).prompt == bare
    assert request_of(api, body | {"tools": None}).prompt == bare


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "s"}, "s"),
        ({"conversation": "c"}, "c"),
        ({"conversation": {"id": "c"}}, "c"),
        ({"conversation": {}}, None),
        ({"conversation": None}, None),
        ({"conversation": ""}, None),
        ({"session_id": "s", "conversation": "c"}, "s"),
        ({"session_id": ""}, None),
    ],
)
def test_a_response_names_its_session(fields: Json, session: str | None) -> None:
    """By vLLM's `session_id` or OpenAI's `conversation`, a string or an object."""
    assert request_of(Api.RESPONSES, {"model": "m", "input": "Hi"} | fields).session == session


def test_a_response_names_what_it_continues() -> None:
    """`previous_response_id`, where it says something."""
    body = {"model": "m", "input": "Hi"}
    assert request_of(Api.RESPONSES, body | {"previous_response_id": "resp_1"}).continues == "resp_1"
    assert request_of(Api.RESPONSES, body | {"previous_response_id": ""}).continues is None
    assert request_of(Api.RESPONSES, body | {"previous_response_id": None}).continues is None


def test_embedded_prompts_are_distinguished() -> None:
    """A prompt given as embeddings is told by its bytes."""
    seen = {canonical(Api.COMPLETIONS, {"prompt_embeds": each}) for each in ("AAAA", "BBBB", ["AAAA", "BBBB"])}
    assert len(seen) == 3
