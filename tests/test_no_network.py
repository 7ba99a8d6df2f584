"""Tests the network guard of conftest.py: connections and look-ups beyond this machine fail, loopback works."""

from __future__ import annotations

import socket

import pytest


def test_only_this_machine_is_reached():
    with socket.socket() as outside, pytest.raises(AssertionError, match="opened a connection to 192.0.2.1"):
        outside.connect(("192.0.2.1", 80))
    with pytest.raises(AssertionError, match="looked up huggingface.co"):
        socket.create_connection(("huggingface.co", 443))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
