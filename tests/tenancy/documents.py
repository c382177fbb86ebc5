"""Documents that look like policies: known words with values of every kind, right and wrong."""

from typing import Any

from hypothesis import strategies as st

from tenancy.reading.fields import HEADERS, JWT, KEY, QUOTA, TENANT, TIER

DIGEST = "0123456789abcdef" * 4

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.4, 1.0, 1.5, 301, 10**7, 1e300, -10, 2_000_000),
    *("", "x", "off", "5", "0", "0.0", "-5", "0.5", "2e-7", "1_000", "${HERE}", " a", "a/b", "a" * 129, "usual"),
    *("1d", "0d", "1mo", "2026-12-01", "soon", "tenant", "shared", "reject", "relax", "downgrade"),
    *("https://sso.example", "http://sso.example", "http://127.0.0.1:8/k", "https://", "0123456789abcdef"),
    *(DIGEST, f"sha256:{DIGEST}", f"hmac-sha256:{DIGEST}", DIGEST[1:], f"md5:{DIGEST}"),
    *(
        [],
        ["a"],
        ["a", "a"],
        [""],
        [1],
        [None],
        ["RS256"],
        ["HS256"],
        ["x-team", "x-b"],
        [DIGEST],
        [{"digest": DIGEST}],
    ),
    *({}, {"a": "b"}, {"a": 1}, {"": "b"}, {"a": {}}, {"a": None}, {"a": {"rpm": 5}}, {"a/b": {}}),
)

NAMES = ("a", "b", "gold", "a/b", "", "x" * 129)

values = st.sampled_from(VALUES)


def some(words: Any, held: Any = values) -> Any:
    """A mapping of a few of these words, and now and then another."""
    keys = st.sampled_from([*words, "other"])
    return st.dictionaries(keys, held, max_size=4)


def entries(entry: Any) -> Any:
    return st.dictionaries(st.sampled_from(NAMES), entry | values, max_size=2)


@st.composite
def documents(draw: Any) -> dict[str, Any]:
    """One policy, more or less."""
    quota = some(QUOTA)
    tenant = st.builds(
        lambda stated, limits, parts: {**stated, **limits, **parts},
        some(TENANT),
        quota,
        st.fixed_dictionaries({}, optional={"per_user": quota | values, "groups": entries(quota) | values}),
    )
    auth = st.fixed_dictionaries(
        {},
        optional={
            "keys": entries(st.lists(values | some(KEY), max_size=2)) | values,
            "keys_dir": values,
            "default_tenant": values,
            "hmac_secret": values,
            "jwt": some(JWT) | values,
        },
    )
    parts = {
        "auth": auth | values,
        "tiers": entries(some(TIER)) | values,
        "defaults": tenant | values,
        "tenants": entries(tenant) | values,
        "headers": some(HEADERS) | values,
        "other": values,
    }
    integer: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=parts))
    return integer
