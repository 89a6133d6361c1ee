"""The official MCP SDK as a client of a host: over streamable HTTP, and over the lines of `wopr mcp`.

Usage: mcp_client.py http URL KEY MODE, or mcp_client.py stdio WOPR STORE MODE. The mode is the SDK's: with an opening
(legacy), or as the newest version does without one (auto).
"""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

GATE = {
    "id": "gated",
    "name": "Gated",
    "version": "1",
    "nodes": [
        {
            "id": "gate",
            "typeId": "core.approvalGate",
            "name": "Gate",
            "position": {"x": 0, "y": 0},
            "config": {"title": "Go?"},
            "inputs": {},
        }
    ],
    "edges": [],
    "triggers": [{"id": "manual", "type": "manual"}],
    "variables": [],
    "metadata": {},
    "settings": {},
}


async def journey(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools["wopr_get_run"].annotations.read_only_hint, tools["wopr_get_run"]
    assert tools["wopr_cancel_run"].annotations.destructive_hint
    checked = await client.call_tool("wopr_validate_workflow", {"definition": {"id": "x"}})
    assert checked.structured_content["valid"] is False, checked
    await client.call_tool("wopr_register_workflow", {"definition": GATE})

    heard = []

    async def progress(done, total, message):
        heard.append((done, message))

    started = await client.call_tool("wopr_start_run", {"workflowId": "gated"}, progress_callback=progress)
    run = started.structured_content
    assert run["status"] == "waiting-approval", started
    question = run["run"]["interrupts"][0]
    watched = await client.call_tool(
        "wopr_watch_run",
        {"runId": run["runId"], "after": run["eventCount"], "waitMs": 300},
        progress_callback=progress,
    )
    assert watched.structured_content["status"] == "waiting-approval"
    assert heard and heard[-1][0] == run["eventCount"], heard
    answered = await client.call_tool(
        "wopr_answer",
        {
            "runId": run["runId"],
            "nodeId": question["nodeId"],
            "interruptId": question["interruptId"],
            "value": {"action": "accept"},
        },
    )
    assert answered.structured_content["status"] == "completed", answered
    failed = await client.call_tool("wopr_get_run", {"runId": "run_nothing"})
    assert failed.is_error and failed.structured_content["error"]["code"] == "not_found", failed

    resources = (await client.list_resources()).resources
    assert any(str(resource.uri).endswith(run["runId"]) for resource in resources), resources
    templates = (await client.list_resource_templates()).resource_templates
    assert len(templates) == 4, templates
    log = await client.read_resource(f"wopr://runs/{run['runId']}/events")
    events = json.loads(log.contents[0].text)
    assert events["isComplete"] and events["events"][-1]["type"] == "run.completed", events
    prompt = await client.get_prompt("diagnose_run", {"runId": run["runId"]})
    assert run["runId"] in prompt.messages[0].content.text


async def main() -> None:
    transport, place, secret, mode = sys.argv[1:]
    if transport == "http":
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
            async with Client(streamable_http_client(f"{place}/mcp", http_client=http), mode=mode) as client:
                await journey(client)
                print(client.protocol_version)
    else:
        server = StdioServerParameters(command=place, args=["mcp", "--store", secret])
        async with Client(stdio_client(server), mode=mode) as client:
            await journey(client)
            print(client.protocol_version)


asyncio.run(main())
