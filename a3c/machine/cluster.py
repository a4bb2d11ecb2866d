"""Ray, which is not installed unless somebody asks for it, and is imported only here.

It finds places for processes, on this machine or on many. Embedded Ray is started and ended with the
program, and listens on this machine's own addresses alone.
"""

import contextlib
import functools
import importlib
import os
import shutil
import signal
import socket
import ssl
import tempfile
from collections.abc import Iterator
from typing import Any

from a3c.machine import cores, place
from a3c.machine.stopping import SIGNALS
from a3c.machine.words import BadInput

VERSION = "2.60"
INSTALL = "`make sweep` or `pip install 'a3c[ray]'` installs it"
ADDRESS_SECONDS = 5.0
# Ray reads these when it is imported.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send nothing home
    "RAY_worker_niceness": "0",  # run as if started by hand
    "RAY_AIR_NEW_OUTPUT": "0",  # print no tables
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # write no logs
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # leave Ctrl-C to us
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may have no score yet
}
# Embedded Ray listens at 127.0.0.1 alone, as it does by default on macOS and Windows.
EMBEDDED = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Have arrays travel inside messages, both ways, and not through Ray's object store, with which 16
# remote workers of `small` made 1.4 updates a second instead of 107 (docs/scaling.md). Ray reads
# these where an array is sent, so actors need them as well.
INLINE = {
    "RAY_max_direct_call_object_size": str(2**27),
    "RAY_task_rpc_inlined_bytes_limit": str(2**27),
}
OBJECT_STORE_BYTES = 80 * 2**20  # Ray's least is 75 MiB; we keep next to nothing there
# Ray speaks HTTP/2: a client greets with this, and the server answers with its settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
NEEDS_TOKEN = "it asks for a token: set RAY_AUTH_MODE=token, and copy its ~/.ray/auth_token here"


def load(address: str | None) -> Any:
    """Import Ray; BadInput where it is missing or of another version, or nobody is at the address."""
    if address is not None:
        _check_address(address)
    os.environ.update(ENVIRONMENT | INLINE | ({} if address else EMBEDDED))
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise BadInput(f"this needs Ray {VERSION}, which is not installed: {INSTALL}") from None
    if not ray.__version__.startswith(f"{VERSION}."):
        raise BadInput(f"this needs Ray {VERSION}, not {ray.__version__}: {INSTALL}")
    return ray


@contextlib.contextmanager
def connected(address: str | None = None, ships_code: bool = False) -> Iterator[Any]:
    """Ray, embedded or at an address (`auto` or HOST:PORT); BadInput where nobody answers."""
    ray = load(address)
    with contextlib.ExitStack() as ending:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            options |= _embedded(ending)
        else:
            options["address"] = address
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        ending.callback(ray.shutdown)
        try:
            with contextlib.ExitStack() as sending:
                if ships_code:  # Ray has sent it when it is connected
                    options["runtime_env"] = {"working_dir": _copy_of_code(sending)}
                with _in_sessions_of_their_own(ray):
                    ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            is_barred = "InvalidAuthToken" in f"{error}{error.__cause__}"
            why = NEEDS_TOKEN if is_barred else error
            raise BadInput(f"cannot connect to Ray at {address or 'local'}: {why}") from None
        finally:
            # Ray sets its own handler of SIGTERM, which ends the program at once.
            for number, handler in handlers.items():
                signal.signal(number, handler)
        yield ray


@contextlib.contextmanager
def _in_sessions_of_their_own(ray: Any) -> Iterator[None]:
    """For the processes that Ray starts: a signal to this program's group, such as a terminal's that is
    closed, would end them first, and the program would wait a minute for them.
    """
    services = ray._private.services
    usual = services.ConsolePopen
    services.ConsolePopen = functools.partial(usual, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = usual


def _embedded(ending: contextlib.ExitStack) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix="a3c-ray-")
    ending.callback(shutil.rmtree, folder, ignore_errors=True)
    return {
        "address": "local",
        "num_cpus": cores.n_usable(),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": folder,
    }


def check_form(address: str) -> tuple[str, int]:
    """Host and port of an address; BadInput where it has none."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise BadInput(f"the address of Ray, {address!r}, must be auto or HOST:PORT")
    return host, int(port)


def _check_address(address: str) -> None:
    """Ray would try for a minute where nobody listens, and for twenty where only one end speaks TLS."""
    if address == "auto":
        return
    host, port = check_form(address)
    has_tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    try:
        with socket.create_connection((host, port), ADDRESS_SECONDS) as connection:
            answer = _greet(_secured(connection, host) if has_tls else connection)
    except (OSError, OverflowError) as error:
        raise BadInput(f"no Ray answers at {address}: {error}") from None
    if not answer:
        how = "with these certificates" if has_tls else "without TLS: RAY_USE_TLS=1 turns it on"
        raise BadInput(f"no Ray answers at {address} {how}")


def _secured(connection: socket.socket, host: str) -> ssl.SSLSocket:
    """The connection with TLS, by the certificates that Ray will use; OSError where it is refused."""
    certificate, key, ca = (
        os.environ.get(f"RAY_TLS_{name}", "") for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")
    )
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connection, server_hostname=host)


def _greet(connection: socket.socket) -> bytes:
    with connection, contextlib.suppress(ConnectionError, ssl.SSLError):
        connection.sendall(GREETING)
        return connection.recv(1)
    return b""


def _copy_of_code(sending: contextlib.ExitStack) -> str:
    """A folder with what a training needs, which Ray sends to each machine."""
    if not place.IS_CLONE:
        raise BadInput("--ship_code sends a clone; an installed package must be on all machines")
    folder = tempfile.mkdtemp(prefix="a3c-code-")
    sending.callback(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(
        place.CODE / "a3c", f"{folder}/a3c", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(place.CODE / "train.py", folder)
    return folder
