"""LiteLLM's proxy: `config.yaml`, and keys and teams as its API exports them.

Deployments of vLLM (`hosted_vllm/...`, or any OpenAI-compatible one with an `api_base`) become pods. Keys are taken
over by the SHA-256 digest that LiteLLM stores, so that clients keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from gateway.migration.document import Imported, Note, Source, count, number, without_empty

VLLM_PROVIDERS = frozenset({"hosted_vllm", "vllm", "openai", "openai_like", "custom_openai", "text-completion-openai"})

DUMMY_KEYS = frozenset({"", "none", "null", "empty", "fake-key", "fake", "dummy", "token-abc123"})
"""What configurations give to servers that ask for no key."""

HOSTED = (
    "openai.com",
    "azure.com",
    "anthropic.com",
    "googleapis.com",
    "amazonaws.com",
    "mistral.ai",
    "groq.com",
    "deepseek.com",
)

ENVIRONMENT = "os.environ/"

DEFAULT_TENANT = "default"

ADMIN_TENANT = "litellm-master"

NOT_VLLM = "Hearth serves vLLM pods; keep this provider behind LiteLLM"

ALIASES_NEED_NAMES = "a wildcard names no model; pods report theirs"

REPORTED = "pods report it"

IN_SECONDS = "the router compares engines in seconds of cached prompt, queue and memory; see `routing`"

LIMITS: Mapping[str, str] = {
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "max_parallel_requests",
    "max_budget": "max_budget",
    "budget_duration": "budget_duration",
}
"""Limits of keys and teams, and the policy's keys."""

DIGEST = re.compile(r"[0-9a-f]{64}")

MONTHS = re.compile(r"([1-9]\d?)mo")

DURATION = re.compile(r"[1-9]\d*[smhdw]")


def import_litellm(
    document: Any, variables: Mapping[str, str], keys: Sequence[Any] = (), teams: Sequence[Any] = ()
) -> Imported:
    """Return the configuration and policy for a parsed config.yaml. Raises `InvalidValue`.

    `variables`: of the environment; a master key that is one of them is hashed. `keys`, `teams`: rows of the API's
    `/key/list` (full objects) and `/team/list`.
    """
    source = Source(document if isinstance(document, Mapping) else {})
    models = _Models(source)
    models.read()
    config: dict[str, Any] = {"model_list": list(models.entries.values())}
    config |= without_empty({"pod_api_key": models.pod_api_key, "redis": _redis(source)})
    config |= without_empty({"retries": _retries(source), "timeouts": _timeouts(source)})
    policy, notes = _policy(source, models, variables, keys, teams)
    _explain(source)
    unmapped = [*source.unmapped(), *(note for rows in notes for note in rows.unmapped())]
    changed = [*source.changed, *(note for rows in notes for note in rows.changed)]
    if not models.entries:
        unmapped.insert(0, Note("model_list", "no deployment of vLLM: the configuration has no pod"))
    return Imported(config, policy, tuple(changed), tuple(unmapped))


class _Models:
    """The deployments: pods and prices by served name, and names that clients use instead."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.entries: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}
        self.pod_api_key: str | None = None

    def read(self) -> None:
        """Read `model_list` and `router_settings.model_group_alias`."""
        for row in self._source.rows("model_list"):
            self._read_deployment(row)
        groups = self._source.peek("router_settings", "model_group_alias")
        for alias, target in (groups if isinstance(groups, Mapping) else {}).items():
            place = ("router_settings", "model_group_alias", alias)
            name = target.get("model") if isinstance(target, Mapping) else target
            if self.served(name) is None:
                self._source.drop(f"`{name}` is no model of a vLLM pod", *place)
                continue
            self._source.take(*place, *(("model",) if isinstance(target, Mapping) else ()))
            self._source.drop("aliases are not hidden", *place, "hidden")
            self.aliases[str(alias)] = str(self.served(name))

    def served(self, name: Any) -> str | None:
        """Return the name by which pods serve a model, None if none does."""
        found = self.aliases.get(str(name), str(name))
        return found if found in self.entries else None

    def _read_deployment(self, row: int) -> None:
        source, place = self._source, ("model_list", row)
        name, (provider, served) = source.peek(*place, "model_name"), self._provider(place)
        words = [word for word in ("api_base", "base_url") if source.peek(*place, "litellm_params", word)]
        base = str(source.peek(*place, "litellm_params", words[0])) if words else ""
        if provider not in VLLM_PROVIDERS or not served or not base or is_hosted(base):
            source.drop(NOT_VLLM, *place)
            return
        if "*" in served or "*" in str(name):
            source.drop(ALIASES_NEED_NAMES, *place)
            return
        source.take_each((*place, "litellm_params"), "model", "custom_llm_provider", words[0])
        entry = self.entries.setdefault(served, {"model_name": served})
        url = pod_url(base)
        if url.startswith("${"):
            source.changed.append(
                Note(f"model_list[{row}].litellm_params.{words[0]}", "the variable must not end in /v1")
            )
        entry["pods"] = list(dict.fromkeys([*entry.get("pods", ()), url]))
        self._read_prices(place, entry)
        self._read_key(place)
        self._name(place, str(name), served)
        for word in ("mode", "max_tokens", "max_input_tokens", "max_output_tokens", "base_model", "supports_vision"):
            source.drop(REPORTED, *place, "model_info", word)
        for word in ("rpm", "tpm", "weight", "order", "max_parallel_requests"):
            source.drop(IN_SECONDS, *place, "litellm_params", word)

    def _provider(self, place: tuple[str, int]) -> tuple[str, str]:
        """Return the provider of a deployment and the name that its server uses."""
        model = str(self._source.peek(*place, "litellm_params", "model") or "")
        named = self._source.peek(*place, "litellm_params", "custom_llm_provider")
        provider, _, served = model.partition("/")
        if named is not None and provider != named:
            return str(named), model
        return provider, served

    def _name(self, place: tuple[str, int], name: str, served: str) -> None:
        known = self.aliases.get(name)
        if known not in (None, served) or (name != served and name in self.entries):
            self._source.drop(
                f"one name over several models: `{name}` is `{known or name}`; see cascades", *place, "model_name"
            )
            return
        self._source.take(*place, "model_name")
        if name != served:
            self.aliases[name] = served

    def _read_prices(self, place: tuple[str, int], entry: dict[str, Any]) -> None:
        for word in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"):
            for part in ("litellm_params", "model_info"):
                if (found := self._source.take(*place, part, word)) is not None:
                    entry[word] = number(found, word)

    def _read_key(self, place: tuple[str, int]) -> None:
        key = self._source.peek(*place, "litellm_params", "api_key")
        if key is None:
            return
        if str(key).lower() in DUMMY_KEYS:
            self._source.take(*place, "litellm_params", "api_key")
        elif not str(key).startswith(ENVIRONMENT):
            self._source.drop(
                "set HEARTH_POD_API_KEY to it: secrets are not copied", *place, "litellm_params", "api_key"
            )
        elif self.pod_api_key in (None, variable(str(key))):
            self.pod_api_key = variable(str(self._source.take(*place, "litellm_params", "api_key")))
        else:
            self._source.drop("all pods have one key", *place, "litellm_params", "api_key")


def is_hosted(base: str) -> bool:
    """Return whether an address is one of a provider's own API."""
    host = urlsplit(base).hostname or ""
    return host.endswith(HOSTED)


def variable(text: str) -> str:
    """Return `${NAME}` for `os.environ/NAME`, other text as it is."""
    return f"${{{text.removeprefix(ENVIRONMENT)}}}" if text.startswith(ENVIRONMENT) else text


def pod_url(base: str) -> str:
    """Return the URL of a pod for an `api_base`."""
    return variable(base).rstrip("/").removesuffix("/v1")


def _redis(source: Source) -> str | None:
    if url := source.take("router_settings", "redis_url"):
        return variable(str(url))
    host = source.take("router_settings", "redis_host")
    if host is None:
        return None
    port = source.take("router_settings", "redis_port") or 6379
    login, password = "", source.peek("router_settings", "redis_password")
    if password is not None:
        if str(password).startswith(ENVIRONMENT):
            source.take("router_settings", "redis_password")
            login = f":{variable(str(password))}@"
        else:
            words = "set the variable REDIS_PASSWORD to it (URL-quoted): secrets are not copied"
            source.change(words, "router_settings", "redis_password")
            login = ":${REDIS_PASSWORD}@"
    return f"redis://{login}{variable(str(host))}:{variable(str(port))}"


def _retries(source: Source) -> dict[str, Any]:
    found = None
    for part in ("router_settings", "litellm_settings"):
        given = source.take(part, "num_retries")
        found = given if found is None else found
    return {} if found is None else {"max_attempts": count(number(found, "num_retries") + 1, "num_retries")}


def _timeouts(source: Source) -> dict[str, Any]:
    words = "from arrival to the first byte; a running stream has no maximum"
    found = source.change(words, "router_settings", "timeout")
    given = source.change(words, "litellm_settings", "request_timeout")
    found = given if found is None else found
    return {} if found is None else {"first_byte_s": number(found, "timeout")}


# --- The policy -------------------------------------------------------------------------------------------------------


def _policy(
    source: Source, models: _Models, variables: Mapping[str, str], keys: Sequence[Any], teams: Sequence[Any]
) -> tuple[dict[str, Any] | None, list[Source]]:
    """Return the policy, None where nothing needs one, and the rows of keys and teams."""
    downgrades = _downgrades(source, models)
    overload = "downgrade" if downgrades else None
    defaults = without_empty({"aliases": models.aliases, "downgrades": downgrades, "on_overload": overload})
    defaults |= _limits(source, ("litellm_settings", "default_team_params"))
    if users := _limits_of_users(source):
        defaults["per_user"] = users
    if (allowed := _models_of(source, models, ("litellm_settings", "default_team_params"))) is not None:
        defaults["models"] = allowed
    uses_tokens = bool(source.peek("general_settings", "enable_jwt_auth"))
    tenants, rows = _teams(models, teams, by_id=uses_tokens)
    auth = _auth(source, variables, tenants)
    rows += _add_keys(models, keys, tenants, auth)
    if not auth and not defaults and not tenants:
        return None, rows
    if not auth:
        auth = {"default_tenant": DEFAULT_TENANT}
        tenants.setdefault(DEFAULT_TENANT, {})
    for tenant in tenants.values():
        _keep_own_limits(tenant, defaults, models)
    for tenant in (defaults, *tenants.values()):
        if "max_budget" in {**tenant, **tenant.get("per_user", {})}:
            # A budget needs the names of its models, each with a price.
            tenant.setdefault("models", list(models.entries))
    return without_empty({"auth": auth, "defaults": defaults, "tenants": tenants}), rows


def _keep_own_limits(tenant: dict[str, Any], defaults: Mapping[str, Any], models: _Models) -> None:
    """Defaults are for teams that LiteLLM creates: what is known already has its own values, or none."""
    for limit in LIMITS.values():
        if limit in defaults and limit != "budget_duration":
            tenant.setdefault(limit, "off")
    if "models" in defaults:
        tenant.setdefault("models", list(models.entries))


def _downgrades(source: Source, models: _Models) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in ("router_settings", "litellm_settings"):
        for row in source.rows(part, "fallbacks"):
            pairs = source.peek(part, "fallbacks", row)
            for name, targets in (pairs if isinstance(pairs, Mapping) else {}).items():
                place = (part, "fallbacks", row, name)
                served = models.served(name)
                target = models.served(targets[0]) if isinstance(targets, list) and targets else None
                if served is None or target is None:
                    source.drop("not both are models of vLLM pods", *place)
                    continue
                if _leads_to(found, target, served):
                    source.drop("downgrades lead to smaller models only: this one would lead back", *place)
                    continue
                source.change(
                    "used under overload, where a tier has objectives; errors are retried on other pods",
                    *place,
                    0,
                )
                source.drop("one smaller model per model", *place)
                found.setdefault(served, target)
    return found


def _leads_to(found: Mapping[str, str], start: str, end: str) -> bool:
    """Return whether downgrades lead from one model to another, or both are one."""
    while start != end and start in found:
        start = found[start]
    return start == end


def _limits(source: Source, place: tuple[str | int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word, ours in LIMITS.items():
        value = source.peek(*place, word)
        if value is None:
            continue
        if word == "budget_duration":
            if (period := _period(source, place, str(value))) is not None:
                found[ours] = period
            continue
        source.take(*place, word)
        found[ours] = number(value, word)
        if ours in ("rpm", "tpm", "max_parallel_requests"):
            found[ours] = count(value, word)
    if ("budget_duration" in found) != ("max_budget" in found):
        # A budget of another period would be another budget.
        source.changed.append(Note(f"{source.name}: budget", "left out: it needs an amount and a period"))
        found.pop("budget_duration", None)
        found.pop("max_budget", None)
    return found


def _limits_of_users(source: Source) -> dict[str, Any]:
    """Return the limits of each user, wherever LiteLLM has them."""
    found = _limits(source, ("litellm_settings", "default_internal_user_params"))
    if (budget := source.peek("litellm_settings", "max_internal_user_budget")) is None:
        return found
    period = source.peek("litellm_settings", "internal_user_budget_duration")
    if period is None or not (DURATION.fullmatch(str(period)) or MONTHS.fullmatch(str(period))):
        source.drop("a budget needs a period", "litellm_settings", "max_internal_user_budget")
        return found
    source.take_each(("litellm_settings",), "max_internal_user_budget", "internal_user_budget_duration")
    months = MONTHS.fullmatch(str(period))
    length = f"{30 * int(months[1])}d" if months else str(period)
    return {"max_budget": number(budget, "max_internal_user_budget"), "budget_duration": length} | found


def _period(source: Source, place: tuple[str | int, ...], value: str) -> str | None:
    """Return the period of a budget as a policy writes it, None where it has no counterpart."""
    if months := MONTHS.fullmatch(value):
        source.change("a month is 30 days, from the first request on", *place, "budget_duration")
        return f"{30 * int(months[1])}d"
    if not DURATION.fullmatch(value):
        source.drop("periods are 30s, 5m, 12h, 1d, 2w", *place, "budget_duration")
        return None
    source.take(*place, "budget_duration")
    return value


def _models_of(source: Source, models: _Models, place: tuple[str | int, ...]) -> list[str] | None:
    """Return the permitted models, None for all."""
    names = source.peek(*place, "models")
    if not isinstance(names, list) or not names:
        source.take(*place, "models")
        return None
    found = list[str]()
    for index, name in enumerate(names):
        if name in ("all-proxy-models", "all-team-models", "*"):
            source.take(*place, "models", index)
            return None
        if (served := models.served(name)) is None:
            source.drop("no model of a vLLM pod", *place, "models", index)
        else:
            source.take(*place, "models", index)
            found.append(served)
    return list(dict.fromkeys(found))


def _auth(source: Source, variables: Mapping[str, str], tenants: dict[str, Any]) -> dict[str, Any]:
    auth: dict[str, Any] = {}
    master = source.peek("general_settings", "master_key")
    if master is not None:
        name = str(master).removeprefix(ENVIRONMENT)
        known = variables.get(name) if str(master).startswith(ENVIRONMENT) else str(master)
        if known is None:
            source.drop(
                f"run the import with {name} set: its digest is a key of the policy", "general_settings", "master_key"
            )
            # Requests were authenticated before: they stay so.
            auth["keys_dir"] = "keys"
        else:
            source.change(
                f"a key of tenant `{ADMIN_TENANT}`, without rights on the admin port", "general_settings", "master_key"
            )
            auth["keys"] = {ADMIN_TENANT: [{"digest": sha256(known.encode()).hexdigest(), "id": "master"}]}
        tenants.setdefault(ADMIN_TENANT, {})
    if source.take("general_settings", "enable_jwt_auth"):
        # What was authenticated stays so, also where the tokens cannot be accepted.
        if set(tenants) <= {ADMIN_TENANT}:
            source.drop(
                "run the import with --teams FILE: a policy lists the tenants that tokens may name", "general_settings"
            )
            auth.setdefault("keys_dir", "keys")
        elif (jwt := _jwt(source)) is not None:
            auth["jwt"] = jwt
        else:
            auth.setdefault("keys_dir", "keys")
    if source.peek("general_settings", "custom_auth") is not None:
        source.drop(
            "code of your own: use keys, tokens or a proxy's headers (docs/policy.md)",
            "general_settings",
            "custom_auth",
        )
        auth.setdefault("keys_dir", "keys")
    return auth


def _jwt(source: Source) -> dict[str, Any] | None:
    place = ("general_settings", "litellm_jwtauth")
    issuer, audience = source.peek(*place, "issuer"), source.peek(*place, "audience")
    team = source.peek(*place, "team_id_jwt_field") or source.peek(*place, "team_ids_jwt_field")
    if not issuer or not audience or not team:
        source.drop("a policy needs issuer, audience and the claim with the team", *place)
        return None
    found: dict[str, Any] = {"issuer": source.take(*place, "issuer")}
    audiences = source.take(*place, "audience")
    found["audiences"] = audiences if isinstance(audiences, list) else [audiences]
    found["tenant_claim"] = source.take(*place, "team_id_jwt_field") or source.take(*place, "team_ids_jwt_field")
    if user := source.take(*place, "user_id_jwt_field"):
        found["user_claim"] = user
    url = source.peek(*place, "public_key_url")
    if url and not str(url).endswith("openid-configuration"):
        found["jwks_url"] = source.take(*place, "public_key_url")
    else:
        source.take(*place, "public_key_url")
    return found


def _teams(models: _Models, teams: Sequence[Any], *, by_id: bool) -> tuple[dict[str, Any], list[Source]]:
    tenants: dict[str, Any] = {}
    rows = list[Source]()
    for index, team in enumerate(teams):
        row = Source(team, f"teams[{index}]")
        rows.append(row)
        identity = row.take("team_id")
        alias = row.take("team_alias")
        name = policy_name((identity if by_id else alias or identity) or f"team-{index}")
        tenant = _limits(row, ())
        if (allowed := _models_of(row, models, ())) is not None:
            tenant["models"] = allowed
        if own := _aliases_of(row, models, "model_aliases"):
            tenant["aliases"] = own
        _drop_usage(row)
        tenants[name] = tenant
        if identity is not None:
            tenant["_team_id"] = str(identity)
    return tenants, rows


def _add_keys(models: _Models, keys: Sequence[Any], tenants: dict[str, Any], auth: dict[str, Any]) -> list[Source]:
    """Add each key to the tenant of its team, with its own limits as a group; a key without a team is a tenant."""
    by_team = {tenant.pop("_team_id"): name for name, tenant in tenants.items() if "_team_id" in tenant}
    rows = [Source(key, f"keys[{index}]") for index, key in enumerate(keys)]
    for row in rows:
        if (entry := _key_entry(row)) is None:
            continue
        team = row.peek("team_id")
        if team is not None and str(team) in by_team:
            row.take("team_id")
            name = by_team[str(team)]
            _add_to_team(row, models, entry, tenants[name], name)
        else:
            if team is not None:
                row.change("its team was not exported: the key is a tenant of its own", "team_id")
            name = str(entry["id"])
            tenants[name] = tenants.get(name, {}) | _tenant_of_key(row, models)
        _drop_usage(row)
        auth.setdefault("keys", {}).setdefault(name, []).append(entry)
    return rows


def _key_entry(row: Source) -> dict[str, Any] | None:
    """Return the policy's entry of a key, None for one that cannot be taken over."""
    digest = str(row.peek("token") or "")
    if not DIGEST.fullmatch(digest):
        row.drop("no SHA-256 digest: make a new key with `hearth keys new`", "token")
        return None
    if row.peek("blocked"):
        row.drop("a blocked key is left out")
        return None
    row.take_each((), "token", "blocked")
    entry: dict[str, Any] = {"digest": digest, "id": policy_name(row.take("key_alias") or digest[:8])}
    if (until := row.take("expires")) is not None:
        entry["expires_at"] = str(until)
    if user := row.take("user_id"):
        entry["user"] = str(user)
    return entry


def _add_to_team(row: Source, models: _Models, entry: dict[str, Any], tenant: dict[str, Any], name: str) -> None:
    """Make limits of a key those of a group that it authenticates."""
    if limits := _limits(row, ()):
        tenant.setdefault("groups", {})[entry["id"]] = limits
        entry["group"] = entry["id"]
    if _models_of(row, models, ()) is not None:
        row.changed.append(Note(f"{row.name}.models", f"models are those of tenant `{name}`"))


def _tenant_of_key(row: Source, models: _Models) -> dict[str, Any]:
    allowed = _models_of(row, models, ())
    own = {"models": allowed} if allowed is not None else {}
    return _limits(row, ()) | own | without_empty({"aliases": _aliases_of(row, models, "aliases")})


def _aliases_of(row: Source, models: _Models, word: str) -> dict[str, str]:
    """Return the aliases of a tenant, with those of all: its own replace the defaults. Empty if it has none."""
    given, found = row.peek(word), dict[str, str]()
    for alias, name in (given if isinstance(given, Mapping) else {}).items():
        if (served := models.served(name)) is None:
            row.drop("no model of a vLLM pod", word, str(alias))
        else:
            row.take(word, str(alias))
            found[str(alias)] = served
    return {**models.aliases, **found} if found else {}


def _drop_usage(row: Source) -> None:
    for word in ("spend", "created_at", "updated_at", "last_active", "budget_reset_at", "created_by", "updated_by"):
        row.drop("usage begins at zero", word)


def policy_name(value: Any) -> str:
    """Return a name that a policy accepts: letters, digits, dot, dash, underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.") or "unnamed"


def _explain(source: Source) -> None:
    """Give reasons for the values that are most often asked for."""
    for word, reason in {
        "routing_strategy": IN_SECONDS,
        "routing_strategy_args": IN_SECONDS,
        "allowed_fails": "circuit breakers open by themselves (docs/retries.md)",
        "cooldown_time": "circuit breakers close by themselves (docs/retries.md)",
        "retry_policy": "one budget for all retries (docs/retries.md)",
        "enable_pre_call_checks": "pods report their context lengths",
        "fallbacks": "not both are models of vLLM pods",
        "context_window_fallbacks": "a prompt beyond a model's context is rejected",
    }.items():
        source.drop(reason, "router_settings", word)
        source.drop(reason, "litellm_settings", word)
    for word, reason in {
        "cache": "responses are not cached; prompts are, in the engines",
        "cache_params": "responses are not cached; prompts are, in the engines",
        "callbacks": "usage log, metrics and receipts (docs/logs.md, docs/metrics.md)",
        "success_callback": "usage log, metrics and receipts (docs/logs.md, docs/metrics.md)",
        "failure_callback": "usage log, metrics and receipts (docs/logs.md, docs/metrics.md)",
        "max_budget": "budgets are of tenants",
        "guardrails": "no guardrails",
    }.items():
        source.drop(reason, "litellm_settings", word)
    for word, reason in {
        "database_url": "policies are files; keys are digests in them",
        "store_model_in_db": "policies are files; keys are digests in them",
        "global_max_parallel_requests": "admission bounds what waits; limits are of tenants",
        "alerting": "alerts are rules of Prometheus (deploy/prometheus)",
    }.items():
        source.drop(reason, "general_settings", word)
    source.drop("set them in the gateway's environment", "environment_variables")
