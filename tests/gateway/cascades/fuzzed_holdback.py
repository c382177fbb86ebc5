"""Streams that are held back, cut into reads by chance, kept or thrown away: the test's and the bench's."""

from __future__ import annotations

from random import Random

from cascade.calibration_file import AnswerVerdict
from cascade.judging import HoldbackSettings
from cascade.logprobs import LOGPROB_APIS, LogprobFilter
from gateway.pipeline.attempt import AttemptStatus
from tests.gateway.cascades.logprob_streams import FixedJudge, cut_up, pair_of
from tests.gateway.http.scene import Scene
from tests.gateway.http.wire import LAST_CHUNK, STREAM_HEAD, chunk

HELD_LONG = 1e9
"""Seconds: no window of these tests is closed by time unless it is what is tested."""


def reads_of(events: list[bytes], draw: Random) -> list[bytes]:
    return [STREAM_HEAD, *cut_up([chunk(each) for each in events] + [LAST_CHUNK], draw)]


def play(seed: int) -> bool:
    """One stream: any API, any split, any verdict, perhaps cut short; and the next model behind it. Whether its client
    saw exactly what it was to see.
    """
    draw = Random(seed)
    api = draw.choice(sorted(LOGPROB_APIS))
    sure, plain = pair_of(api, draw)
    verdict = draw.choice(list(AnswerVerdict))
    hold_back = HoldbackSettings(draw.randint(1, 8), HELD_LONG, draw.random() < 0.3, draw.random() < 0.2)
    judge = FixedJudge(verdict, hold_back, LogprobFilter(api))
    scene = Scene(api, judge=judge)
    reads = reads_of(sure, draw)
    if is_cut := draw.random() < 0.15:
        reads = reads[: draw.randrange(1, len(reads))]
    scene.feed(reads)
    if is_cut and not scene.relay.ended.done():
        scene.hang_up()
    if len(judge.requested) > 1:
        return False
    if verdict is AnswerVerdict.KEEP:
        wanted, seen = b"".join(plain), scene.received.body
        return wanted.startswith(seen) if is_cut else seen == wanted
    ends = {AttemptStatus.ESCALATED, AttemptStatus.CONNECTION_RESET} if is_cut else {AttemptStatus.ESCALATED}
    if scene.client.written or scene.relay.result().end not in ends:
        return False
    scene.ask()
    scene.feed(reads_of(plain, draw))
    return scene.received.is_whole and scene.received.body == b"".join(plain)
