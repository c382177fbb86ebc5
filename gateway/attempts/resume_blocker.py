"""Why some streams end with their pod: what cannot be gone on with truthfully."""

from __future__ import annotations

from enum import StrEnum


class ResumeBlocker(StrEnum):
    """Why a stream that was cut is not gone on with elsewhere. A closed list: metrics and log say these words."""

    OFF = "off"
    """Its tenant's policy, or the configuration, wants no such thing."""
    COPIES = "copies"
    """Several answers stream side by side (`n`, several prompts, beams)."""
    GRAMMAR = "grammar"
    """What is said is held to a grammar, which the next engine would begin anew in the middle."""
    CALL = "call"
    """A call of a tool was being written."""
    REASONING = "reasoning"
    """It has thought aloud: chat templates drop the thoughts of a message that is gone on with."""
    ECHO = "echo"
    """The answer repeats its prompt."""
    CONVERSATION = "conversation"
    """It builds on a response that only the lost pod has stored."""
    PROMPT = "prompt"
    """Its prompt, or what was said, cannot be put into the words of a second request."""
    STOP = "stop"
    """What was said last may be the beginning of a stop string that the next engine would not recognise."""
    TOO_LONG = "too_long"
    """More was said, or asked, than is kept for this."""
    REFUSED = "refused"
    """The next pod called the continuation wrong."""
    DIFFERS = "differs"
    """Asked the same again, the next pod said something else than the client had been told."""
    CUTS = "cuts"
    """It was cut more often than is put up with, or nobody took it in time."""
