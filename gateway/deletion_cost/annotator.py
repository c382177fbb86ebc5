"""Keeps `pod-deletion-cost` of pods in Kubernetes as it is wanted: lists pods, and patches those that differ.

A second annotation says which costs are ours: a cost that was set elsewhere is left alone. Pods are patched only
where their cost changes, and never other fields of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.discovery.kubernetes_api import (
    RESPONSE_TIMEOUT_S,
    ApiError,
    ApiUnavailable,
    KubernetesApi,
    body_of,
    error_of,
)
from gateway.discovery.kubernetes_objects import PodObject

COST = "controller.kubernetes.io/pod-deletion-cost"
"""As ReplicaSets read it: of two pods the one with the lower cost is removed first."""

OURS = "hearth.dev/pod-deletion-cost"
"""The cost that we have set."""

PAGE_SIZE = 500

MAX_PODS = 20_000


@dataclass(frozen=True, slots=True)
class AnnotatedPod:
    """One pod as the API server has it."""

    name: str
    cost: int | None
    """That we have set; None: none."""
    is_set_elsewhere: bool
    """Whether it has a cost that we have not set."""


class PodAnnotator(KubernetesApi):
    """The pods of one namespace and selector."""

    async def pods(self, selector: str) -> dict[str, AnnotatedPod]:
        """Return the pods by their IP address. Raises `ApiError` and `ApiUnavailable`."""
        found: dict[str, AnnotatedPod] = {}
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.list_page(self._path, query)
            for item in page.items or ():
                try:
                    pod = msgspec.json.decode(item, type=PodObject)
                except msgspec.MsgspecError:
                    continue
                if pod.status.pod_ip and pod.metadata.deletion_timestamp is None:
                    found[pod.status.pod_ip] = _annotated(pod)
            if not page.metadata.continue_:
                return found
            if len(found) >= MAX_PODS:
                raise ApiError(f"{self._path}: more than {MAX_PODS} pods: narrow the selector")
            query["continue"] = page.metadata.continue_

    async def apply(self, pods: Mapping[str, AnnotatedPod], costs: Mapping[str, int]) -> int:
        """Give the pods these costs, by address, and all others of ours none. Returns how many were patched.

        Raises `ApiError` and `ApiUnavailable`; a pod that is gone meanwhile is skipped.
        """
        patched = 0
        for address, pod in pods.items():
            wanted = costs.get(address)
            if wanted != pod.cost and not pod.is_set_elsewhere:
                patched += await self._patch(pod.name, wanted)
        return patched

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.account.namespace}/pods"

    async def _patch(self, name: str, cost: int | None) -> bool:
        """Set or remove the cost of a pod. Returns False where the pod is gone."""
        text = None if cost is None else str(cost)
        body = msgspec.json.encode({"metadata": {"annotations": {COST: text, OURS: text}}})
        path = f"{self._path}/{name}"
        headers = {**self.account.headers(), "content-type": "application/merge-patch+json"}
        try:
            async with self._session.patch(
                f"{self.account.url}{path}",
                data=body,
                headers=headers,
                ssl=self._trusted(),
                timeout=aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S),
                allow_redirects=False,
            ) as answer:
                answered = await body_of(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"{path}: {type(error).__name__}") from None
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise error_of(path, answer.status, answered)
        return True


def _annotated(pod: PodObject) -> AnnotatedPod:
    annotations = pod.metadata.annotations or {}
    there, ours = annotations.get(COST), annotations.get(OURS)
    is_ours = ours is not None and ours == there
    return AnnotatedPod(pod.metadata.name, _number(ours) if is_ours else None, there is not None and not is_ours)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
