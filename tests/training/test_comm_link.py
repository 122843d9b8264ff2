from __future__ import annotations

import subprocess
import sys

import pytest

from bench import link

needs_hosts = pytest.mark.skipif(link.missing() is not None, reason=str(link.missing()))


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_without_root_it_says_so_and_names_the_emulated_link(monkeypatch) -> None:
    monkeypatch.setattr(link.os, "geteuid", lambda: 1000)
    assert "run as root, or use the emulated link" in str(link.missing())
    with pytest.raises(RuntimeError, match="need root"), link.two_hosts("30mbit"):
        pytest.fail("made hosts without root")


def test_without_iproute2_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(link.os, "geteuid", lambda: 0)
    monkeypatch.setattr(link.shutil, "which", lambda tool: None)
    assert link.missing() == "ip and tc not found; install iproute2"


@pytest.mark.full
@needs_hosts
def test_two_hosts_see_each_other_over_the_rate_asked_for_and_are_gone_afterwards() -> None:
    with link.two_hosts("30mbit") as hosts:
        shape = subprocess.run(
            hosts.command(0, ["tc", "qdisc", "show", "dev", link.DEVICE]),
            capture_output=True,
            text=True,
        ).stdout
        assert "tbf" in shape
        assert "rate 30Mbit burst 8Kb" in shape
        program = "import os; print(os.environ['RANK'], os.environ['GLOO_SOCKET_IFNAME'])"
        assert hosts.run([sys.executable, "-c", program]) == ["0 wire\n", "1 wire\n"]
    assert not [name for name in hosts.namespaces if name in namespaces()]


@pytest.mark.full
@needs_hosts
def test_hosts_are_removed_when_a_rank_or_the_set_up_fails() -> None:
    with pytest.raises(RuntimeError, match="exit codes"), link.two_hosts(None) as hosts:
        hosts.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert not [name for name in hosts.namespaces if name in namespaces()]
    with pytest.raises(RuntimeError, match="failed"), link.two_hosts("no-rate"):
        pytest.fail("made a link of no rate")
    assert f"seqscale-{link.os.getpid()}" not in namespaces()


@pytest.mark.full
@needs_hosts
def test_every_transfer_is_measured_over_the_real_and_the_emulated_link() -> None:
    rows = link.compare("100mbit", repeats=1, rounds=1)
    assert {row["rate_mbit_per_s"] for row in rows} == {100.0}
    by_name = {row["transfer"]: row for row in rows}
    # 2.5 MB at 100 mbit/s less headers: neither can be faster than the wire, 0.21 s
    large = by_name["0.2 s of wire"]
    assert large["real_s"] > 0.2
    assert large["emulated_s"] > 0.2
    assert len(link.table(rows)) == 2 + len(rows)
