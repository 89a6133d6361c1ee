"""The worker: its steps, its loops, and the activities at hand."""

from __future__ import annotations

import json
import logging
import math
import os
import queue as queues
import random
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from ._http import Refused, Server, Unreachable, hang_up

log = logging.getLogger("wopr_worker")

#: How long one call waits for work, in seconds.
WAIT = 25.0
#: The same for a call that holds the last free place, while another queue waits for one.
SHORT_WAIT = 0.5
#: The most heartbeats that are sent at the same time.
BEATS = 8
#: The most activities of one lease.
MOST = 32
#: How long an outcome is submitted again while the server does not answer, in seconds.
SUBMIT_FOR = 600.0
#: The longest pause before another try, in seconds.
LONGEST_PAUSE = 5.0
#: The server knows no such activity, another worker has it, or the key may not submit: a failure would fare no better.
NOT_OURS = (401, 403, 404, 409)
#: Refusals of a call for work after which the worker calls again. Any other one would be repeated for ever.
MAY_PASS = (404, 409)

Function = Callable[[Any, "Activity"], Any]


class Failure(Exception):
    """Fails an activity with a code. With ``retryable=True`` its node may try again."""

    def __init__(self, code: str, message: str = "", retryable: bool = False):
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable


class WorkRefused(Exception):
    """The server refuses to hand out work, for example because the key is wrong or lacks ``activities:work``."""

    def __init__(self, queue: str, refused: Refused):
        hint = "; check the key, and that it has the scope activities:work" if refused.status in (401, 403) else ""
        super().__init__(f"the server refuses to hand out work of {queue!r}: {refused}{hint}")
        self.status = refused.status


class Activity:
    """An activity that this worker has leased."""

    def __init__(self, server: Server, leased: dict):
        self._server = server
        self._path = "/v1/activities/" + leased["token"]
        self.run_id: str = leased["runId"]
        self.node_id: str = leased["nodeId"]
        self.ordinal: int = leased["ordinal"]
        self.attempt: int = leased["attempt"]
        self.queue: str = leased["queue"]
        self.input: Any = leased["input"]
        #: The same whenever this step is worked at, however often it is handed out.
        self.idempotency_key: str = leased["idempotencyKey"]
        #: How long the worker may be silent, in seconds.
        self.silence = min(leased["leaseMs"], leased.get("heartbeatMs", leased["leaseMs"])) / 1000
        #: Set once nobody waits for the outcome any more.
        self.cancelled = threading.Event()
        self._beat_at = time.monotonic() + self.silence / 3

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled.is_set()

    def report(self, details: Any) -> None:
        """Says how far the work is. The details become an event of the run.

        A report that does not reach the server is lost, and the work goes on.
        """
        try:
            self._beat({"details": details})
        except Unreachable as error:
            log.warning("a report of %s in %s is lost: %s", self.node_id, self.run_id, error)

    def _beat(self, body: dict) -> None:
        try:
            answer = self._server.post(self._path + ":heartbeat", body, timeout=max(1.0, self.silence / 3))
        except Refused as refused:
            if refused.status not in (404, 409):
                raise
            # Another worker has it by now, or its run is gone.
            self.cancelled.set()
        else:
            if answer.get("cancelRequested"):
                self.cancelled.set()

    def _submit(self, outcome: dict) -> None:
        until = time.monotonic() + SUBMIT_FOR
        pauses = Pauses()
        is_replaced = False
        while True:
            try:
                self._server.post(self._path, {"outcome": outcome})
            except Unreachable as error:
                if time.monotonic() > until:
                    log.error("the outcome of %s in %s is lost: %s", self.node_id, self.run_id, error)
                    return
                time.sleep(pauses.next())
            except Refused as refused:
                log.warning("the outcome of %s in %s is not taken: %s", self.node_id, self.run_id, refused)
                if is_replaced or refused.status in NOT_OURS:
                    return
                # Without an outcome the lease would end, and the activity would be done again, for ever.
                outcome = failed("outcome_refused", f"the server refused the outcome: {refused}", False)
                is_replaced = True
            else:
                return


class Pauses:
    """Pauses between tries, which double up to a limit."""

    def __init__(self) -> None:
        self._next = 0.1

    def next(self) -> float:
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)


class Places:
    """The places of activities, which queues get in the order in which they wait for them.

    A call for work holds the places of all activities that it may get.
    """

    def __init__(self, free: int):
        self._free = free
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._n_calls = 0

    def take(self, n_queues: int, stopping: threading.Event) -> tuple[int, bool]:
        """Waits in line for places of a call.

        Returns how many there are, none if the worker stops, and whether the call should be short because another queue
        has no place to call with.
        """
        me = object()
        with self._changed:
            self._line.append(me)
            while not stopping.is_set() and (self._free == 0 or self._line[0] is not me):
                self._changed.wait(0.5)
            self._line.remove(me)
            # Other queues need places too.
            n = 0 if stopping.is_set() else min(MOST, math.ceil(self._free / n_queues))
            self._free -= n
            self._n_calls += 1
            is_short = self._free == 0 and self._n_calls < n_queues
            self._changed.notify_all()
            return n, is_short

    def called(self, n_unused: int) -> None:
        """Ends a call. What it got keeps its places."""
        with self._changed:
            self._n_calls -= 1
            self._free += n_unused
            self._changed.notify_all()

    def leave(self) -> None:
        """An activity has ended."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class Worker:
    """Leases activities and calls functions for them, at most ``concurrency`` at the same time.

    The server is ``WOPR_SERVER`` and the key ``WOPR_API_KEY`` unless they are given.
    """

    def __init__(
        self,
        server: str | None = None,
        key: str | None = None,
        name: str | None = None,
        concurrency: int = 8,
    ):
        server = server or os.environ.get("WOPR_SERVER") or "http://127.0.0.1:8080"
        key = key or os.environ.get("WOPR_API_KEY")
        if not key:
            raise ValueError("no API key: give one, or set WOPR_API_KEY")
        self._server = Server(server, key)
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
        self._places = Places(concurrency)
        self._concurrency = concurrency
        self._functions: dict[str, Function] = {}
        self._stopping = threading.Event()
        #: Requests to stop. A signal handler may put one at any moment: this is the queue whose ``put`` can be interrupted
        #: by itself. The lock of an event cannot, so a handler that set one could wait for itself.
        self._stops: queues.SimpleQueue[None] = queues.SimpleQueue()
        self._refused: WorkRefused | None = None
        self._lock = threading.Lock()
        self._at_hand: set[Activity] = set()
        self._calls: set = set()

    def step(self, queue: str) -> Callable[[Function], Function]:
        """Makes a function do the activities of a queue. It gets the input and the :class:`Activity`."""

        def add(function: Function) -> Function:
            if queue in self._functions:
                raise ValueError(f"the queue {queue!r} has a function already")
            self._functions[queue] = function
            return function

        return add

    def run(self) -> None:
        """Works until :meth:`stop`, or in the main thread until SIGINT or SIGTERM, and ends what is at hand.

        Raises :class:`WorkRefused` if the server refuses to hand out work.
        """
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, lambda *_: self.stop())
        try:
            self._run()
        finally:
            for number, handler in before.items():
                # None is a handler that was not set from Python, and cannot be set again.
                if handler is not None:
                    signal.signal(number, handler)
        if self._refused is not None:
            raise self._refused

    def _run(self) -> None:
        stopper = threading.Thread(target=self._await_stop, daemon=True)
        stopper.start()
        done = threading.Event()
        beating = threading.Thread(target=self._beat, args=(done,), daemon=True)
        with ThreadPoolExecutor(self._concurrency) as pool:
            leasing = [
                threading.Thread(target=self._lease, args=(queue, function, pool))
                for queue, function in self._functions.items()
            ]
            beating.start()
            for thread in leasing:
                thread.start()
            for thread in leasing:
                thread.join()
        done.set()
        beating.join()
        self.stop()
        stopper.join()

    def stop(self) -> None:
        """Leases nothing more. :meth:`run` returns once the activities at hand have ended.

        Threads and signal handlers may call it, as often as they like.
        """
        self._stops.put(None)

    def _await_stop(self) -> None:
        self._stops.get()
        self._stopping.set()
        for connection in list(self._calls):
            hang_up(connection)

    def _lease(self, queue: str, function: Function, pool: ThreadPoolExecutor) -> None:
        pauses = Pauses()
        connection = None
        while not self._stopping.is_set():
            n_places, is_short = self._places.take(len(self._functions), self._stopping)
            leased: list[dict] = []
            pause = 0.0
            try:
                if n_places > 0:
                    connection = connection or self._server.connect(WAIT + 30)
                    leased = self._call(connection, queue, n_places, SHORT_WAIT if is_short else WAIT)
                    pauses = Pauses()
            except (Unreachable, Refused) as error:
                if connection is not None:
                    connection.close()
                connection = None
                if isinstance(error, Refused) and error.status not in MAY_PASS:
                    self._refused = WorkRefused(queue, error)
                    self.stop()
                    return
                if not self._stopping.is_set():
                    log.warning("cannot lease from %s: %s", queue, error)
                    pause = pauses.next()
            finally:
                self._places.called(n_places - len(leased))
            for document in leased:
                activity = Activity(self._server, document)
                with self._lock:
                    self._at_hand.add(activity)
                pool.submit(self._work, function, activity)
            if pause > 0:
                self._stopping.wait(pause)
        if connection is not None:
            connection.close()

    def _call(self, connection, queue: str, n_places: int, wait: float) -> list[dict]:
        body = {"queue": queue, "worker": self._name, "max": n_places, "waitMs": int(wait * 1000)}
        self._calls.add(connection)
        try:
            if self._stopping.is_set():
                return []
            data = json.dumps(body).encode()
            return self._server.send(connection, "/v1/activities:lease", data)["activities"]
        finally:
            self._calls.discard(connection)

    def _work(self, function: Function, activity: Activity) -> None:
        try:
            activity._submit(outcome_of(function, activity))
        except Exception:
            log.exception("the outcome of %s in %s is lost", activity.node_id, activity.run_id)
        finally:
            with self._lock:
                self._at_hand.discard(activity)
            self._places.leave()

    def _beat(self, done: threading.Event) -> None:
        """Sends the heartbeats of the activities at hand, three before each may be silent no longer."""
        # A server that answers one of them slowly must not delay the others.
        with ThreadPoolExecutor(min(self._concurrency, BEATS)) as pool:
            while not done.wait(0.1):
                with self._lock:
                    at_hand = list(self._at_hand)
                now = time.monotonic()
                for activity in at_hand:
                    if activity._beat_at <= now and not activity.is_cancelled:
                        # Not again before this one has ended.
                        activity._beat_at = math.inf
                        pool.submit(beat, activity)


def beat(activity: Activity) -> None:
    """Sends a heartbeat of an activity, and says when the next one is due."""
    next_at = time.monotonic() + activity.silence / 3
    try:
        activity._beat({})
    except (Unreachable, Refused) as error:
        log.warning("no heartbeat for %s in %s: %s", activity.node_id, activity.run_id, error)
        next_at = time.monotonic() + min(1.0, activity.silence / 6)
    finally:
        activity._beat_at = next_at


def outcome_of(function: Function, activity: Activity) -> dict:
    """Calls the function of an activity and makes an outcome of what it returns or raises."""
    try:
        result = function(activity.input, activity)
        outcome = {"ok": True, "result": result}
        json.dumps(outcome, allow_nan=False)
        return outcome
    except Failure as failure:
        return failed(failure.code, failure.message, failure.retryable)
    # Also an exit: in a thread it would end nothing but this activity, and without an outcome.
    except BaseException as error:
        log.exception("%s in %s failed", activity.node_id, activity.run_id)
        return failed("worker_failed", f"{type(error).__name__}: {error}", False)


def failed(code: str, message: str, retryable: bool) -> dict:
    # The server takes codes of 128 bytes and messages of 8 KiB.
    code = code.encode(errors="replace")[:128].decode(errors="ignore") or "worker_failed"
    message = message.encode(errors="replace")[:8192].decode(errors="ignore")
    return {"ok": False, "error": {"code": code, "message": message, "retryable": retryable}}
