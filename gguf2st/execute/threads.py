"""Share out work in order among threads."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_threads(threads: int, tasks: Iterator[Task], make_worker: Callable[[], Callable[[Task], None]]) -> None:
    """Hand tasks in order to `threads` workers, or as many as the system grants.

    The first failure (or Ctrl-C) stops all and is raised.
    """
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work = make_worker()
            while not stop.is_set():
                with lock:
                    task = next(tasks, None)
                if task is None:
                    return
                work(task)
        except BaseException as err:
            errors.append(err)
            stop.set()

    if threads == 1:
        run()
    else:
        pool: list[threading.Thread] = []
        try:
            _start(pool, threads, run)
            if not pool:
                run()
            for thread in pool:
                thread.join()
        except BaseException:
            stop.set()
            while any(thread.is_alive() for thread in pool):
                # A second Ctrl-C must not leave them writing to a file that is closed already.
                with suppress(KeyboardInterrupt):
                    for thread in pool:
                        if thread.is_alive():
                            thread.join()
            raise
    if errors:
        raise errors[0]


def _start(pool: list[threading.Thread], threads: int, run: Callable[[], None]) -> None:
    """Start as many threads as asked for, or as the system grants (`ulimit -u`, cgroups): fewer do the same work."""
    for _ in range(threads):
        pool.append(threading.Thread(target=run, daemon=True))
        try:
            pool[-1].start()
        except RuntimeError:
            pool.pop()
            return


def run_ahead(pool: Executor, call: Callable[[], Result]) -> Callable[[], Result]:
    """What gives the result of a call that runs in a thread meanwhile, or, if the system grants none, when asked."""
    try:
        return pool.submit(call).result
    except RuntimeError:
        return call
