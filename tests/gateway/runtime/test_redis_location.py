"""What the URL of a Redis may say, and that no part of it that may be secret is ever shown."""

import re

import pytest

from gateway.runtime.redis_location import RedisLocation, parse_redis_url


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("redis://h", RedisLocation("single", (("h", 6379),))),
        ("redis://u:p%40w@h:1/3", RedisLocation("single", (("h", 1),), username="u", password="p@w", db=3)),
        ("redis://:pw@[::1]:7", RedisLocation("single", (("::1", 7),), password="pw")),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false&prefix=blue:",
            RedisLocation(
                "single",
                (("h", 6379),),
                is_tls=True,
                tls={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False},
                prefix="blue:",
            ),
        ),
        ("unix:///run/redis.sock?db=2", RedisLocation("single", path="/run/redis.sock", db=2)),
        (
            "redis+sentinel://:pw@a,b:1/mymaster/4?sentinel_username=s&sentinel_password=t",
            RedisLocation(
                "sentinel",
                (("a", 26379), ("b", 1)),
                password="pw",
                service="mymaster",
                db=4,
                sentinel_username="s",
                sentinel_password="t",
            ),
        ),
        ("rediss+sentinel://a/m", RedisLocation("sentinel", (("a", 26379),), is_tls=True, service="m")),
        ("redis+cluster://a:1,b", RedisLocation("cluster", (("a", 1), ("b", 6379)))),
        ("rediss+cluster://a", RedisLocation("cluster", (("a", 6379),), is_tls=True)),
    ],
)
def test_a_url_says_where_redis_is(words: str, place: RedisLocation) -> None:
    """One server, sentinels or a cluster; with TLS; by socket; with password, database and options."""
    assert parse_redis_url(words) == place


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        ("hunter2", "must be a URL beginning with"),
        ("http://hunter2@h", "must be a URL beginning with"),
        ("redis://hunter2 @h", "must be a URL beginning with"),
        ("redis://:hunter2@", "a host or port in it is none"),
        ("redis://:hunter2@h:70000", "a host or port in it is none"),
        ("redis://:hunter2@h:0", "a host or port in it is none"),
        ("redis://:hunter2@h/x", "is a number"),
        ("redis://:hunter2@a,b", "say redis+sentinel:// or redis+cluster://"),
        ("redis+sentinel://:hunter2@a,b", "must name the service"),
        ("redis+cluster://:hunter2@a/1", "a cluster has no database but 0"),
        ("redis://:hunter2@a?db_password=1", "unknown option `db_password`"),
        ("redis://:hunter2@a?sentinel_password=hunter2", "unknown option `sentinel_password`"),
        ("rediss://:hunter2@a?ssl_check_hostname=no", "is true or false"),
        ("unix://?db=1", "names no socket"),
    ],
)
def test_what_is_wrong_is_reported_without_the_password(words: str, stated: str) -> None:
    """Each refusal names the rule, and none the URL."""
    with pytest.raises(ValueError, match=re.escape(stated)) as rejected:
        parse_redis_url(words)
    assert "hunter2" not in str(rejected.value)


def test_a_place_shows_where_it_is_and_not_how_to_get_in() -> None:
    """Logs and representations hold hosts, no passwords."""
    place = parse_redis_url("redis+sentinel://me:hunter2@a,b:1/m?sentinel_password=hunter3")
    assert str(place) == "sentinel a:26379,b:1/m"
    assert "hunter" not in f"{place} {place!r}"
