"""Plans, and sees the coder's tasks through, for runs whose activities a host mediates.

It speaks A2A to the coder by itself, and answers what the coder asks. Nothing is kept here: the key of an activity
names the message, so a worker that was killed finds the same task again.
"""

import json
import os
import time
import urllib.request

from wopr_worker import Failure, Worker

CODER = os.environ.get("CODER", "http://127.0.0.1:7002")
KEY = os.environ["CODER_KEY"]

worker = Worker()


def ask(method, params):
    """Calls the coder, again and again while it is not there."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Content-Type": "application/json",
        "A2A-Version": "1.0",
    }
    request = urllib.request.Request(CODER + "/a2a", json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                document = json.load(answer)
            break
        except OSError:
            time.sleep(0.2)
    if "error" in document:
        raise Failure("A2A_PROVIDER_ERROR", document["error"]["message"])
    return document["result"]


def send(key, part, **more):
    message = {"messageId": key, "role": "ROLE_USER", "parts": [part], **more}
    configuration = {"returnImmediately": True}
    return ask("SendMessage", {"message": message, "configuration": configuration})["task"]


@worker.step("awp.step")
def plan(input, activity):
    return {"plan": f"Change the code for: {input['state']['task']}. Then test it."}


@worker.step("awp.agent_delegate")
def code(input, activity):
    key = activity.idempotency_key
    skill = {"metadata": {"skillId": input["agentId"]}}
    task = send(key, {"data": input["delegateInput"]}, **skill)
    activity.report({"externalTaskId": task["id"]})
    while not activity.is_cancelled:
        state = task["status"]["state"]
        if state == "TASK_STATE_COMPLETED":
            return task["artifacts"][-1]["parts"][0]["data"]
        if state == "TASK_STATE_INPUT_REQUIRED":
            answer = {"data": {"answers": {"style": "plain"}}}
            task = send(f"{key}-answer", answer, taskId=task["id"])
        elif state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
            time.sleep(0.1)
            task = ask("GetTask", {"id": task["id"]})
        else:
            raise Failure("A2A_TASK_FAILED", f"the coder's task is {state}")
    ask("CancelTask", {"id": task["id"]})
    raise Failure("cancelled", "nobody waits for the patch any more")


if __name__ == "__main__":
    worker.run()
