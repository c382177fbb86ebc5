"""Opens the small ports beside the traffic port: an application on an address, and where it really listens."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import msgspec
from aiohttp import web

from gateway.config.values import Address


class CannotListen(Exception):  # noqa: N818 - told to a person, who then acts
    """An address is taken or not ours."""


def cannot_listen(name: str, where: Address, error: OSError) -> CannotListen:
    """What to tell about an address that could not be opened."""
    return CannotListen(f"{name}: cannot listen on {where}: {error.strerror or error}")


async def open_port(name: str, app: web.Application, where: Address) -> tuple[web.AppRunner, list[str]]:
    """Serve `app` on an address. Returns what to clean up, and the addresses chosen."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, where.host, where.port).start()
    except OSError as error:
        await runner.cleanup()
        raise cannot_listen(name, where, error) from None
    return runner, [str(_address(name)) for name in runner.addresses]


def addresses_of(sockets: Iterable[socket.socket]) -> list[str]:
    """Where listening sockets really listen."""
    return [str(_address(held.getsockname())) for held in sockets]


def _address(name: tuple[str, int]) -> Address:
    return Address(name[0], name[1])


def answer_json(value: object, status: int = 200) -> web.Response:
    """One JSON answer, laid out for people: these ports are asked with curl."""
    body = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
