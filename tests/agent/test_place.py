"""Where a machine stands: labels as the downward API writes them, RDMA devices as the kernel shows them."""

from pathlib import Path

from agent.hardware import detect_nics, facts_from_labels, own_address


def test_labels_become_facts(tmp_path: Path) -> None:
    """Those that mean something; others are passed over."""
    labels = tmp_path / "labels"
    labels.write_text(
        'app="vllm"\nllm-d.ai/role="prefill"\ntopology.kubernetes.io/zone="eu-1"\npod-template-hash="5c9"\nempty=""\n'
    )
    assert facts_from_labels(labels) == {"role": "prefill", "zone": "eu-1", "revision": "5c9"}


def device(folder: Path, name: str, rate: str, state: str) -> None:
    port = folder / name / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text(rate)
    (port / "state").write_text(state)


def test_rdma_devices_that_are_up_are_reported(tmp_path: Path) -> None:
    """With what they carry together; one that is down or odd carries nothing."""
    device(tmp_path, "mlx5_0", "400 Gb/sec (4X NDR)\n", "4: ACTIVE\n")
    device(tmp_path, "mlx5_1", "400 Gb/sec (4X NDR)\n", "4: ACTIVE\n")
    device(tmp_path, "mlx5_2", "400 Gb/sec (4X NDR)\n", "1: DOWN\n")
    device(tmp_path, "odd", "fast\n", "4: ACTIVE\n")
    assert detect_nics(tmp_path) == {"nics": ["mlx5_0", "mlx5_1"], "nic_gbit_s": 800}
    assert detect_nics(tmp_path / "none") == {}


def test_this_machine_has_an_address() -> None:
    """At least loopback."""
    assert own_address().count(".") == 3
