"""Tests of the network guard in conftest.py: connections and look-ups beyond this machine fail, loopback works."""

from __future__ import annotations

import socket

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "8.8.8.8"])
def test_a_connection_beyond_this_machine_is_refused(address):
    with socket.socket() as outside, pytest.raises(AssertionError, match=f"opened a connection to {address}"):
        outside.connect((address, 80))


def test_a_look_up_is_refused():
    with pytest.raises(AssertionError, match="looked up huggingface.co"):
        socket.create_connection(("huggingface.co", 443))


def test_loopback_works():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
