"""Facts of pods: one flat mapping, read with all its faults and told again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.facts import FACT_NAMES, MAX_COUNT, InvalidFacts, PodFacts, PromptLengths, Role, read_facts

FULL = PodFacts(
    role=Role.PREFILL,
    models=("qwen", "qwen-lora"),
    revision="7f3a",
    image_digest="sha256:" + "0a" * 32,
    version="0.32.0",
    engine_id="d5b269ce",
    kv_connector="NixlConnector",
    kv_role="kv_producer",
    side_channel="10.0.0.7:5600",
    bootstrap="[fd00::7]:8998",
    kv_dtype="fp8_e4m3",
    kv_layout="HND",
    kv_bytes_per_token=65_536,
    block_size=16,
    tp=8,
    pp=1,
    dp=2,
    ep=True,
    dp_group="10.0.0.7:29550",
    kv_events="tcp://10.0.0.7:5557",
    gpu="NVIDIA H200",
    gpus=8,
    gpu_memory_bytes=150_754_820_096,
    gpu_bandwidth_gb_s=4_800,
    nvlink_gb_s=450,
    nics=("mlx5_0", "mlx5_1"),
    nic_gbit_s=800,
    host="node-7",
    rack="r2",
    zone="a",
    region="eu-north",
    prompts=PromptLengths.LONG,
    spill_rank=1,
)


def test_what_is_reported_is_read_again() -> None:
    """A full set of facts survives the flat mapping; one of nothing is an empty mapping."""
    assert read_facts(FULL.to_mapping()) == FULL
    assert set(FULL.to_mapping()) == FACT_NAMES
    assert PodFacts().to_mapping() == {}
    assert read_facts({}) == PodFacts()


def test_labels_are_texts() -> None:
    """Where all values are texts, numbers and lists are read from them."""
    stated = {"tp": "8", "ep": "True", "gpus": "0", "models": "a, b", "role": "both", "prompts": "short", "host": ""}
    assert read_facts(stated) == PodFacts(
        tp=8, ep=True, gpus=0, models=("a", "b"), role=Role.EITHER, prompts=PromptLengths.SHORT
    )


def test_all_faults_are_reported_at_once() -> None:
    """Each word that is wrong has its line, unknown words too."""
    stated = {"role": "cook", "tp": 0, "ep": "perhaps", "side_channel": "nowhere", "models": {"a": 1}}
    stated |= {"colour": "red", "host": "x\ny"}
    with pytest.raises(InvalidFacts) as caught:
        read_facts(stated)
    assert sorted(fault.partition(":")[0] for fault in caught.value.errors) == sorted(stated)


@pytest.mark.parametrize("port", ["0", "70000", "x", ""])
def test_a_port_must_be_one(port: str) -> None:
    """An address that nobody can connect to is a fault, not a pod."""
    with pytest.raises(InvalidFacts, match="HOST:PORT"):
        read_facts({"bootstrap": f"host:{port}"})


@pytest.mark.parametrize(
    ("facts", "duty"),
    [
        (PodFacts(), Role.EITHER),
        (PodFacts(kv_role="kv_both"), Role.EITHER),
        (PodFacts(kv_role="kv_producer"), Role.PREFILL),
        (PodFacts(kv_role="kv_consumer"), Role.DECODE),
        (PodFacts(kv_role="kv_consumer", role=Role.EITHER), Role.EITHER),
    ],
)
def test_a_role_follows_from_what_was_reported(facts: PodFacts, duty: Role) -> None:
    """A role that was said decides; else the connector's."""
    assert facts.effective_role is duty


@given(
    st.dictionaries(st.sampled_from(sorted(FACT_NAMES)), st.none() | st.integers() | st.text() | st.lists(st.text()))
)
def test_nonsense_gives_facts_or_faults(stated: dict[str, object]) -> None:
    """Whatever is said, there is no other error; and what is read can be told and read again."""
    try:
        facts = read_facts(stated)
    except InvalidFacts:
        return
    assert read_facts(facts.to_mapping()) == facts


def test_a_count_has_an_end() -> None:
    """No number that another reader would round."""
    with pytest.raises(InvalidFacts):
        read_facts({"gpu_memory_bytes": MAX_COUNT + 1})
