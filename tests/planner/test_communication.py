"""Bytes and times of collectives, against rings and exchanges that are walked hop by hop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.errors import ConfigError
from groundup.planner.communication import Cluster
from groundup.planner.interconnects import INTERCONNECTS, Interconnect, choose_interconnects

FAST = Interconnect("fast", 100.0, 0.5)
SLOW = Interconnect("slow", 10.0, 2.0, is_across=True)
POWERS = st.sampled_from([1, 2, 4, 8])


def cluster(num_gpus: int, per_machine: int = 8, across: Interconnect = SLOW) -> Cluster:
    return Cluster(num_gpus, per_machine, FAST, across)


def walk_ring(num_local: int, num_machines: int, num_rounds: int) -> tuple[float, float]:
    """Chunks sent by a GPU on average, inside and across: in every round each GPU passes one of as
    many chunks as there are GPUs to its neighbour."""
    num_gpus = num_local * num_machines
    inside = across = 0
    for _ in range(num_rounds):
        for rank in range(num_gpus):
            is_same = rank // num_local == (rank + 1) % num_gpus // num_local
            inside, across = inside + is_same, across + (not is_same)
    return inside / num_gpus, across / num_gpus


@given(num_local=st.integers(1, 8), num_machines=st.integers(1, 8))
def test_a_ring_sends_what_its_hops_send(num_local: int, num_machines: int) -> None:
    num_gpus = num_local * num_machines
    group, chunk = (num_local, num_machines), 10
    gathered = cluster(num_gpus, num_local).gather(group, chunk * num_gpus, 1)
    reduced = cluster(num_gpus, num_local).all_reduce(group, chunk * num_gpus, 1)
    for traffic, rounds in ((gathered, num_gpus - 1), (reduced, 2 * (num_gpus - 1))):
        inside, across = walk_ring(num_local, num_machines, rounds)
        assert traffic.inside_bytes == pytest.approx(chunk * inside)
        assert traffic.across_bytes == pytest.approx(chunk * across)


@given(num_local=POWERS, num_machines=POWERS)
def test_every_partner_of_the_exact_reduction_gets_half_of_what_the_last_one_got(
    num_local: int, num_machines: int
) -> None:
    num_gpus = num_local * num_machines
    sent = {True: 0.0, False: 0.0}
    amount = 1_000.0
    for level in range(num_gpus.bit_length() - 1):
        amount /= 2
        # There, and what was summed back.
        sent[1 << level < num_local] += 2 * amount
    traffic = cluster(num_gpus, num_local).halve_and_double(1_000, 1)
    assert traffic[:2] == pytest.approx((sent[True], sent[False]))


def test_the_slowest_link_decides_and_hops_come_on_top() -> None:
    two_machines = cluster(8, 4)
    # Of 800 bytes a GPU sends 700, a quarter of them to the other machine.
    traffic = two_machines.gather((4, 2), 800, 3)
    assert traffic[:2] == (525, 175)
    assert traffic.seconds == max(525 / 100, 175 / 10) + 3 * (6 * 0.5 + 1 * 2.0)
    traffic = two_machines.all_reduce((4, 2), 800, 3)
    assert traffic.seconds == 2 * max(525 / 100, 175 / 10) + 3 * 2 * (3 * 0.5 + 1 * 2.0)
    traffic = two_machines.halve_and_double(800, 3)
    assert traffic.seconds == 1_200 / 100 + 200 / 10 + 3 * 2 * (2 * 0.5 + 1 * 2.0)


def test_a_shared_link_is_divided_among_the_gpus_of_a_machine() -> None:
    shared = SLOW._replace(is_shared=True)
    assert cluster(16, 8, shared).across_bytes_per_second == 10 / 8
    assert cluster(4, 8, shared).across_bytes_per_second == 10 / 4
    assert cluster(16, 8).across_bytes_per_second == 10


def test_one_gpu_sends_nothing() -> None:
    alone = cluster(1)
    assert alone.gather((1, 1), 1e9, 9) == alone.all_reduce((1, 1), 1e9, 9) == (0, 0, 0)
    assert alone.halve_and_double(1e9, 9) == (0, 0, 0)


@given(
    num_local=POWERS,
    num_machines=POWERS,
    inside=st.floats(1, 1e12),
    across=st.floats(1, 1e12),
    factor=st.floats(1, 100),
)
def test_more_bandwidth_is_never_slower(
    num_local: int, num_machines: int, inside: float, across: float, factor: float
) -> None:
    def seconds(faster_inside: float, faster_across: float) -> list[float]:
        links = Cluster(
            num_local * num_machines,
            num_local,
            FAST._replace(bytes_per_second=inside * faster_inside),
            SLOW._replace(bytes_per_second=across * faster_across),
        )
        group = (num_local, num_machines)
        sent = [links.gather(group, 1e9, 1), links.all_reduce(group, 1e9, 1)]
        return [one.seconds for one in (*sent, links.halve_and_double(1e9, 1))]

    slow = seconds(1, 1)
    for fast in (seconds(factor, 1), seconds(1, factor), seconds(factor, factor)):
        assert all(one <= other for one, other in zip(fast, slow, strict=True))


def test_gpus_fill_machines_or_part_of_one() -> None:
    assert (cluster(4).num_local, cluster(4).num_machines) == (4, 1)
    assert (cluster(24).num_local, cluster(24).num_machines) == (8, 3)
    with pytest.raises(ConfigError, match="12 GPUs do not fill machines of 8: give --gpus a mult"):
        cluster(12)


def test_every_device_has_links_and_names_take_their_own_place() -> None:
    def names(device: str, *given: str) -> tuple[str, str]:
        inside, across = choose_interconnects(device, "cuda", given)
        return inside.name, across.name

    assert names("H200") == ("nvlink4", "infiniband-ndr")
    assert names("A100 80GB") == ("nvlink3", "infiniband-hdr")
    assert names("RTX 4090") == names("something else") == ("pcie4", "ethernet-100g")
    assert names("H200", "Ethernet-25G") == ("nvlink4", "ethernet-25g")
    assert names("H200", "roce-100g", "pcie5") == ("pcie5", "roce-100g")
    assert names("H200", "12.5") == ("nvlink4", "12.5 GB/s")
    assert choose_interconnects("H200", "cuda", ["12.5"])[1].bytes_per_second == 12.5e9
    assert choose_interconnects("CPU of 2 cores", "cpu")[0].name == "loopback"
    for wrong in ("nvlnk4", "0", "-1", "nan", "inf", "1e400", ""):
        with pytest.raises(ConfigError, match="is not in the planner's table"):
            names("H200", wrong)


def test_every_interconnect_says_where_it_was_measured() -> None:
    assert len({link.name for link in INTERCONNECTS}) == len(INTERCONNECTS)
    for link in INTERCONNECTS:
        assert link.source and link.bytes_per_second > 0 and link.hop_seconds > 0
        assert link.is_across or not link.is_shared
