"""Which callers the picker's port serves: by the certificates that they show, by a token they share with us, or all.

What was wrong is neither logged nor told to the caller; that a caller was rejected is counted, and logged once in a
while. Health is served without a token: its answers hold nothing, and probes have none.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Collection

from gateway.config.fields import Secret
from gateway.ext_proc.http2.handler import Guard
from gateway.ext_proc.http2.receiver import Fields

Say = Callable[..., None]

LOGGED_EVERY_S = 60.0
"""Between two lines about rejected callers of one kind."""

TOKEN, CERTIFICATE = "token", "certificate"

OF_CERTIFICATES = frozenset(("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"))
"""As OpenSSL names a handshake that failed for want of a good certificate of the client."""


class CallerCheck:
    """One per gateway process."""

    def __init__(self, clock: Callable[[], float], say: Say) -> None:
        self._clock = clock
        self._say = say
        self._logged_s: dict[str, float] = {}
        self.rejected = {TOKEN: 0, CERTIFICATE: 0}

    def __repr__(self) -> str:
        return f"<CallerCheck, rejected: {self.rejected}>"

    def with_token(self, token: Secret, open_paths: Collection[bytes]) -> Guard:
        """Return a guard that serves requests with this token, and those for `open_paths` without."""
        wanted = token.value.encode()

        def is_known(fields: Fields) -> bool:
            scheme, _, shown = fields.get(b"authorization", b"").partition(b" ")
            is_right = hmac.compare_digest(shown.strip(), wanted) and scheme.lower() == b"bearer"
            if is_right or fields.get(b":path") in open_paths:
                return True
            self._reject(TOKEN)
            return False

        return is_known

    def watch_handshakes(self, tls: ssl.SSLContext) -> None:
        """Count handshakes that fail for want of a certificate: no connection of ours ever hears of them."""
        reject = self._reject

        class WatchedTls(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except ssl.SSLError as error:
                    if error.reason in OF_CERTIFICATES:
                        reject(CERTIFICATE)
                    raise

        tls.sslobject_class = WatchedTls

    def _reject(self, by: str) -> None:
        self.rejected[by] += 1
        now_s, logged_s = self._clock(), self._logged_s.get(by)
        if logged_s is None or now_s - logged_s >= LOGGED_EVERY_S:
            self._logged_s[by] = now_s
            self._say("warning", "extproc caller rejected", by=by)
