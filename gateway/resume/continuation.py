"""The rest of an answer that was cut: the request for it, and the splicer that joins it to what was delivered."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.continuation_request import ContinuationRequest, build_recovered_request, build_request
from gateway.resume.delivered import DeliveredOutput
from gateway.resume.replay import ChoicesReplay, MessagesReplay, ResponsesReplay
from gateway.resume.splice import (
    MALFORMED_EVENT,
    ChoicesSplicer,
    MessagesSplicer,
    ResponsesSplicer,
    SplicedUsage,
    StreamSplicer,
)
from gateway.resume.token_recovery import (
    RecoveredChatSplicer,
    RecoveredMessageSplicer,
    RecoveredTokens,
    TokenPrefixCheck,
)
from routing.request import Api

PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
}


class Continuation(Struct, frozen=True):
    """The rest of one answer."""

    delivered: DeliveredOutput
    request: ContinuationRequest

    @property
    def path(self) -> str:
        """Path of the continuation request."""
        return PATHS[self.request.api]

    def with_tokens(self, recalled: RecoveredTokens) -> Continuation:
        """Return the continuation by its token ids: no token has to be inferred from the length of the prompt."""
        delivered = replace(self.delivered, tokens=recalled.tokens + self.delivered.has_end_token, prompt_tokens=None)
        return Continuation(delivered, build_recovered_request(self.request.body, delivered, recalled))

    def splicer(self, *, withholds_usage: bool) -> StreamSplicer:
        """Return a splicer for the events of one pod that continues; each attempt needs its own."""
        delivered, follow_up = self.delivered, self.request
        if follow_up.is_replay:
            return _replayed(delivered, withholds_usage=withholds_usage)
        joint = SplicedUsage(delivered, is_full=follow_up.is_exhausted, again=follow_up.repeated_text)
        if follow_up.recovered is not None:
            return self._recalling(follow_up.recovered, joint, withholds_usage=withholds_usage)
        match delivered.api:
            case Api.MESSAGES:
                return MessagesSplicer(delivered, joint)
            case Api.RESPONSES:
                return ResponsesSplicer(delivered, joint, may_be_full=follow_up.may_be_exhausted)
            case _:
                return ChoicesSplicer(delivered.api, delivered, joint, withholds_usage=withholds_usage)

    def _recalling(self, recalled: RecoveredTokens, joint: SplicedUsage, *, withholds_usage: bool) -> StreamSplicer:
        delivered, proof = self.delivered, TokenPrefixCheck(self.delivered, recalled)
        joint.thoughts = recalled.reasoning_tokens
        if delivered.api is Api.MESSAGES:
            return RecoveredMessageSplicer(delivered, joint, proof)
        return RecoveredChatSplicer(
            delivered, joint, proof, withholds_usage=withholds_usage, returns_ids=self.request.wants_token_ids
        )


def _replayed(delivered: DeliveredOutput, *, withholds_usage: bool) -> StreamSplicer:
    match delivered.api:
        case Api.MESSAGES:
            return MessagesReplay(delivered)
        case Api.RESPONSES:
            return ResponsesReplay(delivered)
        case _:
            return ChoicesReplay(delivered.api, delivered, withholds_usage=withholds_usage)


def continuation_of(body: bytes, delivered: DeliveredOutput, *, sequences: int) -> Continuation | ResumeBlocker:
    """Return the continuation, or why there is none; `body` is what the first pod was sent."""
    try:
        follow_up = build_request(delivered.api, body, delivered, sequences)
        if isinstance(follow_up, ResumeBlocker):
            return follow_up
        rest = Continuation(delivered, follow_up)
        rest.splicer(withholds_usage=False)
    except MALFORMED_EVENT:
        return ResumeBlocker.UNSUPPORTED_PROMPT  # The events of the lost pod do not have the format of its API.
    return rest
