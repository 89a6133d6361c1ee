"""Functions that do the work of workflow steps which wopr runs.

A worker leases activities of its queues, calls a function for each, sends heartbeats meanwhile, and submits the outcome.
"""

from ._worker import Activity, Failure, Worker, WorkRefused

__all__ = ["Activity", "Failure", "WorkRefused", "Worker"]
