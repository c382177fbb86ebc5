"""The rest of an answer that was cut: the request for it, and the splicer that joins it to what was delivered."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gateway.pipeline.attempt import Bar
from gateway.resume.continuation_request import Asking, ask_on, ask_recalled
from gateway.resume.delivered import Said
from gateway.resume.replay import ChoicesAgain, MessagesAgain, ResponsesAgain
from gateway.resume.splice import UNLIKE, ChoicesStitch, Joint, MessagesStitch, ResponsesStitch, Stitch
from gateway.resume.token_recovery import Proof, Recalled, RecalledChat, RecalledMessage
from routing.request import Api

PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
}


class Rest(Struct, frozen=True):
    """The rest of one answer."""

    said: Said
    asking: Asking

    @property
    def path(self) -> str:
        """Path of the continuation request."""
        return PATHS[self.asking.api]

    def recalled(self, recalled: Recalled) -> Rest:
        """Return the continuation by its token ids: no token has to be inferred from the length of the prompt."""
        delivered = replace(self.said, tokens=recalled.tokens + self.said.tells_end, prompt_tokens=None)
        return Rest(delivered, ask_recalled(self.asking.body, delivered, recalled))

    def stitch(self, *, withholds_usage: bool) -> Stitch:
        """Return a splicer for the events of one pod that continues; each attempt needs its own."""
        delivered, asking = self.said, self.asking
        if asking.is_anew:
            return _anew(delivered, withholds_usage=withholds_usage)
        joint = Joint(delivered, is_full=asking.is_full, again=asking.again)
        if asking.recalled is not None:
            return self._recalling(asking.recalled, joint, withholds_usage=withholds_usage)
        match delivered.api:
            case Api.MESSAGES:
                return MessagesStitch(delivered, joint)
            case Api.RESPONSES:
                return ResponsesStitch(delivered, joint, may_be_full=asking.may_be_full)
            case _:
                return ChoicesStitch(delivered.api, delivered, joint, withholds_usage=withholds_usage)

    def _recalling(self, recalled: Recalled, joint: Joint, *, withholds_usage: bool) -> Stitch:
        delivered, proof = self.said, Proof(self.said, recalled)
        joint.thoughts = recalled.thoughts
        if delivered.api is Api.MESSAGES:
            return RecalledMessage(delivered, joint, proof)
        return RecalledChat(delivered, joint, proof, withholds_usage=withholds_usage, tells_ids=self.asking.tells_ids)


def _anew(delivered: Said, *, withholds_usage: bool) -> Stitch:
    match delivered.api:
        case Api.MESSAGES:
            return MessagesAgain(delivered)
        case Api.RESPONSES:
            return ResponsesAgain(delivered)
        case _:
            return ChoicesAgain(delivered.api, delivered, withholds_usage=withholds_usage)


def rest_of(body: bytes, delivered: Said, *, sequences: int) -> Rest | Bar:
    """Return the continuation, or why there is none; `body` is what the first pod was sent."""
    try:
        asking = ask_on(delivered.api, body, delivered, sequences)
        if isinstance(asking, Bar):
            return asking
        rest = Rest(delivered, asking)
        rest.stitch(withholds_usage=False)
    except UNLIKE:
        return Bar.PROMPT  # The events of the lost pod do not have the format of its API.
    return rest
