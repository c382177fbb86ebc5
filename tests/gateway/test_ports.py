"""A port may be shared by the workers of one gateway, and by nobody else."""

import asyncio
import socket

import pytest

from gateway.config.listening import Address
from gateway.ports import CannotListen, addresses_of, bindings_of, reserve_port, share_port


async def test_a_reserved_port_is_shared_by_its_own_only() -> None:
    """Workers listen on it; a second gateway cannot reserve it, and one process alone cannot listen there."""
    (reserved,) = await reserve_port("listen", Address("127.0.0.1", 0))
    where = Address(*reserved.getsockname())
    assert where.port != 0
    with pytest.raises(CannotListen, match=f"listen: cannot listen on {where}: .*address already in use"):
        await reserve_port("listen", where)
    with pytest.raises(OSError, match="address already in use"):
        await asyncio.get_running_loop().create_server(asyncio.Protocol, where.host, where.port)
    shared = [share_port("listen", bindings_of([reserved]))[0] for _ in range(2)]
    for held in shared:
        held.listen()
    with pytest.raises(CannotListen, match="already in use"):
        await reserve_port("listen", where)
    assert addresses_of(shared) == [str(where)] * 2
    for held in (reserved, *shared):
        held.close()
    for held in await reserve_port("listen", where):
        held.close()


async def test_a_port_that_others_listen_on_is_not_reserved() -> None:
    """Also where they would share it with anybody."""
    for option in (None, socket.SO_REUSEPORT):
        with socket.socket() as taken:
            if option is not None:
                taken.setsockopt(socket.SOL_SOCKET, option, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(CannotListen, match="already in use"):
                await reserve_port("listen", Address(*taken.getsockname()))


async def test_what_cannot_be_bound_is_told() -> None:
    """An address of nobody, a name of nobody, and a share of what is not shared."""
    with pytest.raises(CannotListen, match="cannot assign requested address"):
        await reserve_port("listen", Address("192.0.2.1", 0))
    with pytest.raises(CannotListen, match=r"listen: cannot listen on nowhere\.invalid:80: "):
        await reserve_port("listen", Address("nowhere.invalid", 80))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotListen, match="already in use"):
            share_port("listen", bindings_of([taken]))
