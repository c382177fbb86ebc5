"""What a pod answers to besides generating: health, models, tokens, ids, connections."""

from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, Subject
from tests.conformance.wire import spell


class SurfaceContract:
    """Tried on a pod by a test class of its own that inherits it."""

    async def test_health_is_an_empty_200(self, subject: Subject) -> None:
        """A probe needs no body."""
        answer = await subject.get("/health")
        assert (answer.status, answer.body) == (200, b"")

    async def test_version_is_reported(self, subject: Subject) -> None:
        """The pod says which vLLM it is, or behaves like."""
        answer = await subject.get("/version")
        assert answer.status == 200
        assert answer.json()["version"].startswith("0.32.")

    async def test_models_are_listed_with_their_longest_prompt(self, subject: Subject) -> None:
        """Discovery learns the model's name and its context from one list."""
        listed = (await subject.get("/v1/models")).json()
        assert list(listed) == ["object", "data"]
        assert listed["object"] == "list"
        card = listed["data"][0]
        assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
        assert (card["id"], card["object"], card["owned_by"]) == (subject.model, "model", "vllm")
        assert card["parent"] is None, "a base model is no adapter"
        assert card["max_model_len"] == subject.context_tokens

    async def test_an_unknown_path_is_not_found(self, subject: Subject) -> None:
        """The refusal of the router has another shape than that of an API."""
        for answer in (await subject.get("/v1/nothing"), await subject.post("/v1/nothing", {})):
            assert answer.status == 404
            assert answer.json() == {"detail": "Not Found"}

    async def test_a_wrong_method_is_rejected(self, subject: Subject) -> None:
        """Which methods there are stands in a header."""
        answer = await subject.get(CHAT)
        assert answer.status == 405
        assert answer.headers["allow"] == "POST"
        assert answer.json() == {"detail": "Method Not Allowed"}

    async def test_tokens_are_counted_and_spelled(self, subject: Subject) -> None:
        """Text to tokens and back."""
        counted = (await subject.post("/tokenize", {"model": subject.model, "prompt": "one two three"})).json()
        assert list(counted) == ["count", "max_model_len", "tokens", "token_strs"]
        assert counted["count"] == len(counted["tokens"]) > 0
        assert counted["max_model_len"] == subject.context_tokens
        tokens = {"model": subject.model, "tokens": counted["tokens"]}
        assert (await subject.post("/detokenize", tokens)).json() == {"prompt": "one two three"}

    async def test_a_chat_counts_the_tokens_that_its_usage_reports(self, subject: Subject) -> None:
        """Tokenising a conversation applies the template, as asking does."""
        requested = subject.request(CHAT)
        counted = (await subject.post("/tokenize", {"model": subject.model, "messages": requested["messages"]})).json()
        answer = (await subject.post(CHAT, requested)).json()
        assert answer["usage"]["prompt_tokens"] == counted["count"]

    async def test_messages_are_counted(self, subject: Subject) -> None:
        """The Anthropic way to ask for a prompt's length."""
        requested = subject.request(MESSAGES)
        counted = (await subject.post(f"{MESSAGES}/count_tokens", requested)).json()
        usage = (await subject.post(MESSAGES, requested)).json()["usage"]
        reported = usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
        assert counted["input_tokens"] == reported

    async def test_the_callers_request_id_names_the_answer(self, subject: Subject) -> None:
        """So an engine's log line is found from ours, and two legs of a pair find each other."""
        for path, prefix in ((CHAT, "chatcmpl-"), (COMPLETIONS, "cmpl-"), (MESSAGES, "chatcmpl-")):
            answer = await subject.post(path, subject.request(path), {"X-Request-Id": "ours-1"})
            assert answer.json()["id"] == f"{prefix}ours-1"

    async def test_an_engine_that_is_not_there_is_rejected(self, subject: Subject) -> None:
        """The data-parallel rank is a header; this pod has only rank 0."""
        for path in (CHAT, COMPLETIONS, MESSAGES):
            good = await subject.post(path, subject.request(path), {"X-data-parallel-rank": "0"})
            assert good.status == 200
            bad = await subject.post(path, subject.request(path), {"X-data-parallel-rank": "3"})
            assert bad.status == 400
            assert bad.json()["error"]["message"] == "data_parallel_rank 3 is out of range [0, 1)."

    async def test_a_connection_is_kept_after_good_and_bad(self, subject: Subject) -> None:
        """Neither an answer nor a refusal costs the next request a new connection."""
        reader, writer = await subject.connect()
        json_type = {"Content-Type": "application/json"}
        try:
            for body, status in ((b"{", b"400"), (subject.request(CHAT), b"200"), (subject.request(CHAT), b"200")):
                writer.write(spell("POST", CHAT, body, json_type))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.split(b" ")[1] == status
                assert b"connection: close" not in head.lower()
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.partition(b":")[2]))
        finally:
            writer.close()
            await writer.wait_closed()

    async def test_a_chunked_request_is_read(self, subject: Subject) -> None:
        """A body may come without its length told beforehand."""
        content = spell("POST", "/", subject.request(CHAT), {}).partition(b"\r\n\r\n")[2]
        reader, writer = await subject.connect()
        head = spell("POST", CHAT, None, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
        head = head.replace(b"Content-Length: 0\r\n", b"")
        try:
            writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content))
            assert (await reader.readline()).split(b" ")[1] == b"200"
        finally:
            writer.close()
            await writer.wait_closed()

    async def test_the_unary_answer_reports_its_length(self, subject: Subject) -> None:
        """What is not streamed comes in one piece, as JSON."""
        for path in APIS:
            answer = await subject.post(path, subject.request(path))
            assert answer.headers["content-type"] == "application/json"
            assert int(answer.headers["content-length"]) == len(answer.body)
