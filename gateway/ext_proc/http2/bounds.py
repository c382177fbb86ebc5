"""What bounds the other end of a connection: counts, bytes and times. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one connection. Envoy keeps a connection per worker thread, and a stream per request."""

    max_streams: int = 20_000
    """Open at one time on a connection; one whose work has not ended yet counts, also when it was reset."""
    max_message_bytes: int = (32 << 20) + (1 << 20)
    """One message holds a whole body where Envoy was told to buffer it."""
    max_header_bytes: int = 64 << 10
    max_continuations: int = 16
    """Frames of one header block: many small ones cost much and mean nothing."""
    stream_window: int = 1 << 20
    """Bytes of one stream that may be under way to us."""
    pending_bytes: int = 256 << 10
    """Unsent bytes of a stream beyond which nothing more of it is read."""
    unread_answers_bytes: int = 4 << 20
    """Unsent bytes of a connection whose other end goes on asking and does not read: it is closed."""
    idle_frames: int = 1_000
    """Frames in a row that carry nothing of a request (settings, pings, priorities, empty data, unknown kinds). Each
    request that was served gives back `frames_per_request` of them, and each second `idle_frames_per_s`.
    """
    idle_frames_per_s: float = 100.0
    frames_per_request: int = 4
    frames_per_fault: int = 10
    """What a stream costs of these that had to be reset because its frames were wrong."""
    resets_per_s: float = 1_000.0
    """Streams that the other end may reset before they were answered, beyond `max_streams` of them at once."""
    remembered_streams: int = 1_024
    """Streams ended by this side first, whose frames may still be under way and are ignored; older ones are reset."""
    preface_s: float = 10.0
    """From the connection to the first frame."""
    frame_s: float = 60.0
    """From the beginning of a frame or header block to its end."""
    silence_s: float = 20.0
    """Without a byte: then the other end is asked whether it is there, and after as long again taken to be gone."""
