"""Real sockets: late joiners, gaps, restarts, noise, and both ways of connecting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import zmq

from gateway.kv_index.event_feed import EventFeed
from gateway.kv_index.subscriber import EventEndpoint, EventSubscriber
from routing.precise.event_reliability import UnreliableReason
from routing.precise.kv_events import AllBlocksCleared, BlockStored
from routing.precise.precise_index import NOTHING_CACHED, PreciseIndex
from routing.precise.token_chains import BlockHashes, TokenPrompt, pack_tokens
from tests.gateway.fake_pod import Pulse
from tests.gateway.kv_index.publisher import Publisher

BLOCK = 2


class Heard(EventFeed):
    """A feed that beats whenever something has come."""

    pulse: Pulse

    def take(self, number: int, payload: bytes) -> None:
        super().take(number, payload)
        self.pulse.beat()

    def end_replay(self, *, answered: bool) -> None:
        super().end_replay(answered=answered)
        self.pulse.beat()


async def is_caught_up(publisher: Publisher, feed: Heard) -> None:
    """What was said before is told, to its end, and what is said from now on comes by itself."""
    await publisher.subscribed()
    await feed.pulse.until(lambda: feed.reliability.is_reliable)


@asynccontextmanager
async def subscribed(publisher: Publisher, source: EventEndpoint | None = None) -> AsyncIterator[Heard]:
    """A subscriber that runs beside the test, and its feed."""
    source = source or EventEndpoint(publisher.endpoint, publisher.replay_endpoint or None, publisher.topic.decode())
    index, feeds = PreciseIndex(), list[Heard]()
    index.add_engine("e", BLOCK)

    def make(ask: object) -> Heard:
        feeds.append(Heard("e", index, log_event=lambda *_, **__: None, ask=ask))  # type: ignore[arg-type]
        feeds[0].pulse = Pulse()
        return feeds[0]

    with zmq.Context() as sockets:
        subscriber = EventSubscriber(source, make, lambda *_, **__: None, sockets)  # type: ignore[arg-type]
        task = asyncio.create_task(subscriber.run())
        try:
            yield feeds[0]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def block(name: int) -> BlockStored:
    return BlockStored([name + 1], name or None, [name] * BLOCK, BLOCK, medium="GPU")


def held(feed: EventFeed, blocks: int) -> int:
    tokens = [token for token in range(blocks) for _ in range(BLOCK)]
    return (
        feed._index.lookup(BlockHashes(TokenPrompt(pack_tokens([*tokens, 99])))).get("e", NOTHING_CACHED).tokens
        // BLOCK
    )


async def test_a_late_joiner_has_the_history_reported() -> None:
    """Thousands of batches, more than a socket's queue takes at once, and then what comes by itself."""
    async with Publisher() as publisher:
        for name in range(3000):
            await publisher.log_event(block(name), lost=True)
        async with subscribed(publisher) as feed:
            await publisher.subscribed()
            await feed.pulse.until(lambda: feed.count.batches >= 3000)
            await publisher.log_event(block(3000))
            await feed.pulse.until(lambda: held(feed, 3001) == 3001)
            assert feed.reliability.is_reliable
            assert publisher.requested[0] == 0


async def test_a_gap_is_noticed_and_filled() -> None:
    """By the number of the next batch that does come."""
    async with Publisher() as publisher, subscribed(publisher) as feed:
        await is_caught_up(publisher, feed)
        await publisher.log_event(block(0))
        await publisher.log_event(block(1), lost=True)
        await publisher.log_event(block(2))
        await feed.pulse.until(lambda: held(feed, 3) == 3)
        assert feed.reliability.is_reliable


async def test_without_replay_a_gap_is_unreliable_until_the_cache_is_cleared() -> None:
    """Nobody tells what was missed; a cleared cache needs no past."""
    async with Publisher(replays=False) as publisher, subscribed(publisher) as feed:
        await publisher.subscribed()
        await publisher.log_event(block(0))
        await feed.pulse.until(lambda: feed.reliability.is_reliable)
        await publisher.log_event(block(1), lost=True)
        await publisher.log_event(block(2))
        await feed.pulse.until(lambda: feed.reliability.unreliable_reason is UnreliableReason.GAP)
        await publisher.log_event(AllBlocksCleared(), block(0))
        await feed.pulse.until(lambda: feed.reliability.is_reliable)
        assert held(feed, 3) == 1


async def test_a_restarted_publisher_is_followed_again() -> None:
    """It counts from 0 again: nothing of its former life is held."""
    async with Publisher() as publisher, subscribed(publisher) as feed:
        await is_caught_up(publisher, feed)
        for name in range(4):
            await publisher.log_event(block(name))
        await feed.pulse.until(lambda: held(feed, 4) == 4)
        publisher.restart()
        await publisher.log_event(block(0))
        await feed.pulse.until(lambda: feed.count.restarts == 1)
        assert held(feed, 4) == 1


async def test_noise_is_counted_and_never_fatal() -> None:
    """Messages with the wrong frames, and payloads that say nothing."""
    async with Publisher(replays=False) as publisher, subscribed(publisher) as feed:
        await publisher.subscribed()
        await publisher._pub.send_multipart([publisher.topic, b"?"])
        await publisher.log_event(payload=b"\xc1noise")
        await publisher.log_event(block(0))
        await feed.pulse.until(lambda: feed.count.batches == 2)
        assert feed.count.malformed == 2
        assert held(feed, 1) == 1


async def test_a_publisher_may_connect_to_us(free_port: int) -> None:
    """As vLLM does where its address has no wildcard: then we are the ones who listen."""
    endpoint = f"tcp://127.0.0.1:{free_port}"
    publisher = Publisher(replays=False)
    publisher.connect(endpoint)
    async with publisher, subscribed(publisher, EventEndpoint(endpoint, None, "kv", bind=True)) as feed:
        await publisher.subscribed()
        await publisher.log_event(block(0))
        await feed.pulse.until(lambda: held(feed, 1) == 1)


async def test_other_topics_are_not_for_us() -> None:
    """Several engines may publish at one address."""
    publisher = Publisher(topic="other", replays=False)
    async with publisher, subscribed(publisher, EventEndpoint(publisher.endpoint, None, "")) as feed:
        await publisher.subscribed()
        async with subscribed(publisher, EventEndpoint(publisher.endpoint, None, "kv")) as deaf:
            await publisher.subscribed()
            await publisher.log_event(block(0))
            await feed.pulse.until(lambda: held(feed, 1) == 1)
            assert deaf.count.batches == 0
