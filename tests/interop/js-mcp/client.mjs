// The official MCP SDK for TypeScript as a client of a host: over streamable HTTP, and over the lines of `wopr mcp`.
//
// Usage: client.mjs http URL KEY, or client.mjs stdio WOPR STORE.

import assert from 'node:assert/strict'
import process from 'node:process'

import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const GATE = {
  id: 'gated',
  name: 'Gated',
  version: '1',
  nodes: [
    {
      id: 'gate',
      typeId: 'core.approvalGate',
      name: 'Gate',
      position: { x: 0, y: 0 },
      config: { title: 'Go?' },
      inputs: {},
    },
  ],
  edges: [],
  triggers: [{ id: 'manual', type: 'manual' }],
  variables: [],
  metadata: {},
  settings: {},
}

const [kind, place, secret] = process.argv.slice(2)

function transport() {
  if (kind === 'http') {
    const requestInit = { headers: { Authorization: `Bearer ${secret}` } }
    return new StreamableHTTPClientTransport(new URL(`${place}/mcp`), { requestInit })
  }
  return new StdioClientTransport({ command: place, args: ['mcp', '--store', secret] })
}

const client = new Client({ name: 'journey', version: '1' })
await client.connect(transport())
assert.equal(client.getServerVersion().name, 'wopr')

// With the tools listed, the SDK holds structured content against their schemas.
const { tools } = await client.listTools()
assert.ok(tools.some(({ name }) => name === 'wopr_start_run'))

const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options)
await call('wopr_register_workflow', { definition: GATE })
const started = (await call('wopr_start_run', { workflowId: 'gated' })).structuredContent
assert.equal(started.status, 'waiting-approval')
const [question] = started.run.interrupts

const heard = []
const watched = await call(
  'wopr_watch_run',
  { runId: started.runId, after: started.eventCount, waitMs: 300 },
  { onprogress: ({ progress }) => heard.push(progress) },
)
assert.equal(watched.structuredContent.eventCount, started.eventCount)
assert.deepEqual(heard, [started.eventCount])

// Cancelling a call ends the wait, not the run.
const stop = new AbortController()
const waiting = call(
  'wopr_watch_run',
  { runId: started.runId, after: started.eventCount },
  { signal: stop.signal, onprogress: () => stop.abort() },
)
await assert.rejects(waiting)

const answered = await call('wopr_answer', {
  runId: started.runId,
  nodeId: question.nodeId,
  interruptId: question.interruptId,
  value: { action: 'accept' },
})
assert.equal(answered.structuredContent.status, 'completed')
const failed = await call('wopr_get_run', { runId: 'run_nothing' })
assert.ok(failed.isError)
assert.equal(failed.structuredContent.error.code, 'not_found')

const { contents } = await client.readResource({ uri: `wopr://runs/${started.runId}/events` })
assert.ok(JSON.parse(contents[0].text).isComplete)
const { prompts } = await client.listPrompts()
assert.equal(prompts.length, 3)
await client.close()
console.log('done')
