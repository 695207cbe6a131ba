"""Processes, on one host or on many, that train one run together: how they meet, and what they tell each other between updates.

A process alone is a team of one: every function here then gives back what it was given. What they say goes through the key-value
store of JAX's coordination service and not through the devices, so that one may wait for another as long as it takes.
Knows nothing of training.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

T = TypeVar("T")

AUTO = "auto"
JOIN_SECONDS = 300  # that the processes have to find each other
_PATIENCE = 10**9  # ms, of one that waits for another; JAX ends it when the other dies
_rounds = itertools.count()


class OtherProcessError(OSError):
    """Another process met an error, so that this one cannot go on."""


def join(
    coordinator: str,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: int = JOIN_SECONDS,
) -> None:
    """Makes this process one of several, before anything asks JAX for a device.

    Args:
      coordinator: `HOST:PORT` of process 0, or "auto": JAX finds everything out from the cluster (SLURM, Open MPI, a TPU pod,
        Kubernetes), where each process gets one device.
      num_processes, process_id: how many there are, and which this is, from 0; None with "auto".
      timeout: seconds that they have to find each other. A process that is still waiting then ends with a line and exit code 2.
    Raises:
      ValueError: arguments that do not fit together, a host that nobody knows, or no cluster that JAX knows.
      OSError: process 0 cannot listen at the port, which is taken, say.
    """
    _check_place(coordinator, num_processes, process_id)
    # SIGTERM stays ours: it ends training with a checkpoint
    jax.config.update("jax_enable_preemption_service", False)
    is_auto = coordinator == AUTO
    try:
        with _patience(coordinator, process_id, timeout):
            jax.distributed.initialize(
                None if is_auto else coordinator,
                num_processes,
                process_id,
                cluster_detection_method=None if is_auto else "deactivate",
                initialization_timeout=timeout + 60,  # JAX would abort with a dump of its stack
            )
    except (ValueError, RuntimeError) as error:
        if is_auto:
            raise ValueError(
                f"--coordinator auto: JAX finds no cluster here ({_first_line(error)}); give HOST:PORT, --num-processes and "
                "--process-id"
            ) from None
        raise OSError(f"process {process_id} cannot join {coordinator} ({_first_line(error)})") from None


def count() -> int:
    """How many processes there are."""
    return jax.process_count() if jax.distributed.is_initialized() else 1  # asks a process alone for no device


def is_first() -> bool:
    """Whether this is process 0, which alone prints and writes what is not divided."""
    return count() == 1 or jax.process_index() == 0


def exchange(value: Any) -> list[Any]:
    """What each process gave, in their order; JSON values. All must call it alike."""
    if count() == 1:
        return [value]
    client, own, turn = _client(), jax.process_index(), next(_rounds)
    client.key_value_set(_name(turn, own), json.dumps(value))
    texts = [client.blocking_key_value_get(_name(turn, i), _PATIENCE) for i in range(count())]
    if turn:  # whoever has come so far has read all of the turn before
        client.key_value_delete(_name(turn - 1, own))
    return [json.loads(text) for text in texts]


def from_first(make: Callable[[], T]) -> T:
    """What process 0 makes, for all; JSON values.

    Raises:
      OtherProcessError: it could not; in process 0, its own error.
    """
    value: Any = None
    with together():
        value = make() if is_first() else None
    return value if count() == 1 else exchange(value)[0]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """An error that one process meets inside is raised in all of them, when each has come to the end.

    Raises:
      OtherProcessError: in those that met none themselves.
    """
    if count() == 1:
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    told = exchange(None if own is None else f"{own}" or type(own).__name__)
    if own is not None:
        raise own
    for process, text in enumerate(told):
        if text is not None:
            raise OtherProcessError(f"process {process}: {text}")


def _check_place(coordinator: str, num_processes: int | None, process_id: int | None) -> None:
    given = [
        name for name, x in {"--num-processes": num_processes, "--process-id": process_id}.items() if x is not None
    ]
    if coordinator == AUTO:
        if given:
            raise ValueError(f"--coordinator auto finds out what {' and '.join(given)} would say; leave it out")
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"--coordinator {coordinator!r} must be HOST:PORT of process 0, such as 10.0.0.1:1234, or auto"
        )
    if num_processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} also needs --num-processes and --process-id, from 0 on")
    if num_processes < 1 or not 0 <= process_id < num_processes:
        raise ValueError(
            f"--process-id {process_id} of --num-processes {num_processes}: ids go from 0 to one below the number"
        )
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise ValueError(f"--coordinator {coordinator}: nobody knows the host {host!r} ({error.strerror})") from None
    if process_id == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:  # JAX would crash
            raise OSError(
                f"--coordinator {coordinator}: process 0 cannot listen there ({os.strerror(error.errno or 0)})"
            ) from None


@contextlib.contextmanager
def _patience(coordinator: str, process_id: int | None, seconds: int) -> Iterator[None]:
    """Ends this process with a line when the others have not come in time; JAX, which can only abort, would not say it."""
    if process_id == 0:
        missing = "not all other processes came; start them, and see that they reach this host and port"
    else:
        missing = f"process {process_id} got no answer; start process 0 there, and see that this host reaches it"
    where = "the cluster's processes" if coordinator == AUTO else coordinator
    line = f"error: {where}: within {seconds} s {'they did not meet' if process_id is None else missing}"

    def give_up() -> None:
        print(line, file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _client() -> Any:
    from orbax.checkpoint import multihost  # JAX itself shows it to nobody

    return multihost.get_jax_distributed_client()


def _name(turn: int, process: int) -> str:
    return f"jaxrl_trade/{turn}/{process}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:160]
