"""What is left of an answer that was cut: how it is asked for, and how it is joined to what was said."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gateway.pipeline.resume_blocker import Bar
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
    """Of one answer."""

    said: Said
    asking: Asking

    @property
    def path(self) -> str:
        return PATHS[self.asking.api]

    def recalled(self, recalled: Recalled) -> Rest:
        """The same, now that it is known in tokens: none of them has to be reckoned from the prompt's length."""
        said = replace(self.said, tokens=recalled.tokens + self.said.tells_end, prompt_tokens=None)
        return Rest(said, ask_recalled(self.asking.body, said, recalled))

    def stitch(self, *, withholds_usage: bool) -> Stitch:
        """For the events of the pod that goes on; made anew for each that tries."""
        said, asking = self.said, self.asking
        if asking.is_anew:
            return _anew(said, withholds_usage=withholds_usage)
        joint = Joint(said, is_full=asking.is_full, again=asking.again)
        if asking.recalled is not None:
            return self._recalling(asking.recalled, joint, withholds_usage=withholds_usage)
        match said.api:
            case Api.MESSAGES:
                return MessagesStitch(said, joint)
            case Api.RESPONSES:
                return ResponsesStitch(said, joint, may_be_full=asking.may_be_full)
            case _:
                return ChoicesStitch(said.api, said, joint, withholds_usage=withholds_usage)

    def _recalling(self, recalled: Recalled, joint: Joint, *, withholds_usage: bool) -> Stitch:
        said, proof = self.said, Proof(self.said, recalled)
        joint.thoughts = recalled.thoughts
        if said.api is Api.MESSAGES:
            return RecalledMessage(said, joint, proof)
        return RecalledChat(said, joint, proof, withholds_usage=withholds_usage, tells_ids=self.asking.tells_ids)


def _anew(said: Said, *, withholds_usage: bool) -> Stitch:
    match said.api:
        case Api.MESSAGES:
            return MessagesAgain(said)
        case Api.RESPONSES:
            return ResponsesAgain(said)
        case _:
            return ChoicesAgain(said.api, said, withholds_usage=withholds_usage)


def rest_of(body: bytes, said: Said, *, sequences: int) -> Rest | Bar:
    """What is to be asked for behind what was said; `body` is what the first pod was sent."""
    try:
        asking = ask_on(said.api, body, said, sequences)
        if isinstance(asking, Bar):
            return asking
        rest = Rest(said, asking)
        rest.stitch(withholds_usage=False)
    except UNLIKE:
        return Bar.PROMPT  # What the lost pod said is in no shape that its API knows.
    return rest
