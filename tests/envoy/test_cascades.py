"""Cascades behind Envoy: where a request begins is chosen there too; what would have to be judged is refused as
settings are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade.calibration_file import SignalStage
from cascade.calibration_json import write_calibration_file
from gateway.config.loading import check_file
from tenancy.document import InvalidDocument
from tests.envoy.envoys import BUFFERED_NONE, DUPLEX, Way
from tests.envoy.scene import a_scene, asking
from tests.scenarios.cascade_pods import CASCADE, calibration_file


def settings(folder: Path, **cascade: Any) -> dict[str, Any]:
    """A cascade that goes by the prompt: all that is easier than anything begins, and ends, at the small model."""
    file = folder / "auto.json"
    file.write_bytes(write_calibration_file(calibration_file(-1e6, signal="ease", stage=SignalStage.PROMPT)))
    entry = {"models": ["small", "big"], "calibration": str(file)}
    return {"model_list": [{"model_name": CASCADE, "cascade": entry | cascade}]}


@pytest.mark.parametrize("way", [BUFFERED_NONE, DUPLEX], ids=["buffered", "duplex"])
@pytest.mark.parametrize(("headers", "rung"), [({}, "small"), ({"x-hearth-cascade-min-model": "big"}, "big")])
@pytest.mark.asyncio
async def test_the_starting_model_is_chosen(tmp_path: Path, way: Way, headers: dict[str, str], rung: str) -> None:
    """The pod is asked for the model's model, streaming or not, and the receipt says which and that nobody judged."""
    reported = settings(tmp_path, holdback="off", check_unary=False)
    async with a_scene(way, settings=reported) as scene:
        for stream in (True, False):
            async with scene.session.post(
                f"{scene.url}/v1/chat/completions", json=asking(model=CASCADE, stream=stream), headers=headers
            ) as answer:
                text = await answer.text()
                assert answer.status == 200, text
            events = [line[6:] for line in text.split("\n\n") if line.startswith("data: {")] if stream else [text]
            assert {json.loads(event)["model"] for event in events} == {rung}
        await scene.until_idle()
        receipts = await scene.receipts()
        assert {receipt["model"] for receipt in receipts} == {rung}
        assert {step["result"] for receipt in receipts for step in receipt["cascade"]["steps"]} == {"unjudged"}


def test_a_judging_cascade_is_rejected(tmp_path: Path) -> None:
    """With the reason, and what to write instead."""
    config = tmp_path / "hearth.yaml"
    config.write_text(json.dumps(settings(tmp_path) | {"extproc": {"listen": "127.0.0.1:9002"}}))
    with pytest.raises(InvalidDocument) as rejected:
        check_file(config, {})
    [fault] = [str(fault) for fault in rejected.value.errors]
    assert "model_list" in fault
    assert "checks answers, which Envoy does not send through the gateway: set `extproc.return_listen`" in fault
