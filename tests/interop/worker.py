"""A worker of clients/python. Appends a line to a file for each activity that it begins, and does what the input says."""

import os
import signal
import sys
import time

from wopr_worker import Failure, Worker, WorkRefused

tally = sys.argv[1]
worker = Worker(name=sys.argv[2], concurrency=4)


def note(text):
    file = os.open(tally, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (text + "\n").encode())
    os.close(file)


@worker.step("jobs")
def work(input, activity):
    note(activity.idempotency_key)
    what = input["what"]
    if what == "fail-once" and activity.attempt == 0:
        raise Failure("busy", "not yet", retryable=True)
    if what == "break":
        raise RuntimeError("the machine is on fire")
    if what == "exit":
        sys.exit(3)
    if what == "wait":
        activity.report({"waits": True})
        cancelled = activity.cancelled.wait(60)
        note(f"cancelled {cancelled}")
        return {}
    if what == "large":
        return {"n": "x" * 12_000_000}
    if what == "signals":
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.02)
    return {"n": input["n"]}


try:
    worker.run()
except WorkRefused as refused:
    note(f"WorkRefused {refused.status}")
    raise
note(f"{sys.argv[2]} has stopped")
