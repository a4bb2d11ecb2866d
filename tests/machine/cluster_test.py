"""Whom Ray would wait for in vain is told at once; servers of these tests stand for Ray, which is not needed."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import types

import pytest

from a3c.machine import cluster
from a3c.machine.words import BadInput


@pytest.fixture
def served(monkeypatch):
    """Starts a server that says this to each greeting; returns its address."""
    environment = os.environ | {"RAY_USE_TLS": "0"}
    monkeypatch.setattr(os, "environ", environment)  # Ray's variables stay in here
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(__version__="2.60.0"))
    listening = socket.create_server(("127.0.0.1", 0))

    def start(answer, secure=lambda connection: connection):
        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with contextlib.suppress(OSError), secure(connection) as connection:
                        connection.recv(len(cluster.GREETING))
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_whoever_answers_the_greeting_is_connected_to(served):
    """Analytic: Ray is imported then, and told to send nothing home."""
    assert cluster.load(served(b"\0")).__version__ == "2.60.0"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_server_that_hangs_up_is_refused(served):
    """Analytic: as one with TLS does to a client without; Ray itself would try for twenty minutes."""
    with pytest.raises(BadInput, match="without TLS"):
        cluster.load(served(b""))


def certificate(folder, name, *options):
    """Make a key and a certificate for 127.0.0.1; returns the paths of both."""
    key, path = folder / f"{name}.key", folder / f"{name}.crt"
    words = [*("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}")]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", path, *options]
    subprocess.run(words, check=True, capture_output=True)
    return str(path), str(key)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_certificates_are_tried_before_ray_tries_them(served, tmp_path):
    """Analytic: those of the same authority are let in; a missing one and a stranger's are refused."""
    ours, strangers = certificate(tmp_path, "ours"), certificate(tmp_path, "stranger")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours)
    context.load_verify_locations(ours[0])
    context.verify_mode = ssl.CERT_REQUIRED
    address = served(b"\0", lambda connection: context.wrap_socket(connection, server_side=True))

    def load(ca, own):
        names = ("CA_CERT", "SERVER_CERT", "SERVER_KEY")
        paths = zip(names, (ca, *own), strict=True)
        os.environ.update({"RAY_USE_TLS": "1"} | {f"RAY_TLS_{name}": path for name, path in paths})
        return cluster.load(address)

    assert load(ours[0], ours).__version__ == "2.60.0"
    for ca, own, why in [
        (ours[0], strangers, "with these certificates"),
        (strangers[0], ours, "certificate verify failed"),
        (ours[0], ("", ""), "No such file"),
    ]:
        with pytest.raises(BadInput, match=why):
            load(ca, own)
