"""Serves the operators' page on the admin port, and guards that port against web pages of others.

The page is one file without external parts. Its policy allows the script and the style of that file by their hashes,
requests to its own origin, and nothing else; with Trusted Types the browser itself rejects any text that would become
markup. The page holds no data, so it is served without the token; everything that it then requests needs it.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

PAGE_PATHS = ("/", "/ui")

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Of every response of the admin port."""

DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
"""Of all other responses."""

EMBEDDED = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its own script and style, by hash, and its own origin."""
    sources: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in EMBEDDED.findall(page):
        sources[kind].append(f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(sources['script'])}",
            f"style-src {' '.join(sources['style'])}",
            *("connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
            *("require-trusted-types-for 'script'", "trusted-types 'none'"),
        )
    )


def page_routes() -> list[web.RouteDef]:
    """Return the routes of the page. Its URLs are relative: it also works behind a path prefix."""
    text = files("gateway.observe").joinpath("page.html").read_text(encoding="utf-8")
    body, policy = text.encode(), page_policy(text)

    async def page(_: web.Request) -> web.Response:
        """The operators' page."""
        headers = {"Content-Security-Policy": policy}
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    return [web.get(path, page) for path in PAGE_PATHS]


def is_page(request: web.Request) -> bool:
    """Return whether a request is for the page itself, which holds no data."""
    return request.path in PAGE_PATHS and request.method in (hdrs.METH_GET, hdrs.METH_HEAD)


@web.middleware
async def security_headers_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the security headers to every response."""
    answer = await handler(request)
    for name, value in SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers.setdefault("Content-Security-Policy", DATA_POLICY)
    return answer


@web.middleware
async def same_origin_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject requests that pages of other origins make; following a link to the page is allowed."""
    site = request.headers.get("sec-fetch-site", "none")
    is_link = request.headers.get("sec-fetch-mode") == "navigate" and is_page(request)
    if not is_own_origin(request) or (site not in ("same-origin", "none") and not is_link):
        raise web.HTTPForbidden(text="not for web pages of other origins")
    return await handler(request)


def is_own_origin(request: web.Request) -> bool:
    """Return whether the Origin header is absent or names the host that the client has addressed.

    A proxy that sets another Host names the one that the client addressed in X-Forwarded-Host. A web page cannot
    set that header on a request to another origin without a preflight, which is not answered.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None:
        return True
    hosts = {request.headers.get(hdrs.HOST, ""), request.headers.get("x-forwarded-host", "")} - {""}
    scheme, _, host = origin.partition("://")  # Not parsed: a malformed one is of no host.
    return scheme in ("http", "https") and host in hosts
