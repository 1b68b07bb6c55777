"""The head's calls of Ray, an extra, which is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import wraps
from importlib import import_module
from typing import Any

from opatlas.run.devices.device_lock import SESSION_VARIABLE
from opatlas.run.process.fresh_python import import_paths
from opatlas.run.process.messages import decode, encode

#: Ray's part of an actor that answers signs of life.
WATCH = "watch"


def ray() -> Any:
    """Returns the module."""
    import_module("ray.util.scheduling_strategies")
    return import_module("ray")


def start_actor(kind: type, resources: Mapping[str, float], strategy: Any, *arguments: object) -> Any:
    """Starts an actor on a host.

    Args:
        kind: an Actor (ray_actor.py).
        resources: its share of the node, by Ray's names.
        strategy: the node, as Ray's scheduling strategies say it.
        arguments: of the class, before the session and the import path.
    """
    other = dict(resources)
    actor = (
        ray()
        .remote(concurrency_groups={WATCH: 1})(kind)
        .options(
            num_cpus=other.pop("CPU", 0),
            num_gpus=other.pop("GPU", 0),
            resources=other,
            scheduling_strategy=strategy,
            max_restarts=0,
            max_task_retries=0,
        )
    )
    return actor.remote(*arguments, os.environ.get(SESSION_VARIABLE, ""), import_paths())


def sent(method: Callable[..., Any]) -> Callable[..., bytes]:
    """Makes a method of an actor return its answer as bytes, which Ray does not pickle."""

    @wraps(method)
    def send(*arguments: Any) -> bytes:
        return encode(method(*arguments))

    return send


def future(reference: Any, kind: Any) -> Future[Any]:
    """Returns the future of a call of a method that is marked with `sent`; `kind` is the type of its answer."""
    answer: Future[Any] = Future()

    def take(done: Future[bytes]) -> None:
        try:
            answer.set_result(decode(bytes(done.result()), kind))
        except Exception as error:
            answer.set_exception(error)

    reference.future().add_done_callback(take)
    return answer


def beat(actor: Any) -> Future[str]:
    """Asks an actor for a sign of life."""
    return future(actor.beat.options(concurrency_group=WATCH).remote(), str)


def first_line(error: BaseException) -> str:
    """Returns an error in one line; Ray's have many."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
