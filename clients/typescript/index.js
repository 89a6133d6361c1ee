// Functions that do the work of workflow steps which wopr runs: a worker leases activities of its queues, calls a function
// for each, sends heartbeats meanwhile, and submits the outcome. The types are in index.d.ts.

/** How long one call waits for work, in milliseconds. */
const WAIT_MS = 25_000;
/** The same for a call that holds the last free place, while another queue waits for one. */
const SHORT_WAIT_MS = 500;
/** The most activities of one lease. */
const MOST = 32;
/** How long an answer may take that nobody waits for. */
const ANSWER_MS = 30_000;
/** How long an outcome is submitted again while the server does not answer. */
const SUBMIT_FOR_MS = 600_000;
const LONGEST_PAUSE_MS = 5_000;
/** The server knows no such activity, another worker has it, or the key may not submit: a failure would fare no better. */
const NOT_OURS = [401, 403, 404, 409];
/** Refusals of a call for work after which the worker calls again. Any other one would be repeated for ever. */
const MAY_PASS = [404, 409];

export class Failure extends Error {
  constructor(code, message = "", options = {}) {
    super(message);
    this.name = "Failure";
    this.code = code;
    this.retryable = options.retryable ?? false;
  }
}

/** The server answered with an error. */
class Refused extends Error {
  constructor(status, document) {
    super(`${status} ${document?.error ?? ""}: ${document?.message ?? ""}`);
    this.status = status;
  }
}

/** The server refuses to hand out work, for example because the key is wrong or lacks `activities:work`. */
export class WorkRefused extends Error {
  constructor(queue, refused) {
    const isKey = refused.status === 401 || refused.status === 403;
    const hint = isKey ? "; check the key, and that it has the scope activities:work" : "";
    super(`the server refuses to hand out work of ${queue}: ${refused.message}${hint}`);
    this.name = "WorkRefused";
    this.status = refused.status;
  }
}

/** The server did not answer, or cannot answer now. */
class Unreachable extends Error {}

class Server {
  constructor(url, key) {
    this.url = String(new URL(url)).replace(/\/$/, "");
    this.headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  }

  async post(path, body, signal, ms = ANSWER_MS) {
    const signals = [AbortSignal.timeout(ms), signal].filter(Boolean);
    // Outside of the try, so that a body without a JSON form is an error of the caller.
    const sent = JSON.stringify(body);
    let answer, text;
    try {
      answer = await fetch(this.url + path, {
        method: "POST",
        headers: this.headers,
        body: sent,
        signal: AbortSignal.any(signals),
      });
      text = await answer.text();
    } catch (error) {
      throw new Unreachable(String(error?.cause ?? error));
    }
    if (answer.status >= 500 || answer.status === 408 || answer.status === 429) {
      throw new Unreachable(`the server answered ${answer.status}`);
    }
    let document = {};
    try {
      document = JSON.parse(text);
    } catch {
      // An error without a document has a status.
    }
    if (answer.status !== 200) throw new Refused(answer.status, document);
    return document;
  }
}

/** Pauses between tries, which double up to a limit. */
class Pauses {
  next_ = 100;

  next() {
    const pause = this.next_ * (0.5 + Math.random() / 2);
    this.next_ = Math.min(this.next_ * 2, LONGEST_PAUSE_MS);
    return pause;
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Activity {
  #server;
  #path;
  #cancelling = new AbortController();
  #silence;

  constructor(server, leased) {
    this.#server = server;
    this.#path = `/v1/activities/${leased.token}`;
    const { runId, nodeId, ordinal, attempt, queue, idempotencyKey } = leased;
    Object.assign(this, { runId, nodeId, ordinal, attempt, queue, idempotencyKey });
    this.signal = this.#cancelling.signal;
    this.#silence = Math.min(leased.leaseMs, leased.heartbeatMs ?? leased.leaseMs);
  }

  /** How long until the next heartbeat: three before the worker may be silent no longer. */
  get pace() {
    return this.#silence / 3;
  }

  async report(details) {
    try {
      await this.beat({ details });
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      console.warn(`a report of ${this.nodeId} in ${this.runId} is lost: ${error.message}`);
    }
  }

  async beat(body) {
    try {
      const answer = await this.#server.post(`${this.#path}:heartbeat`, body, undefined, Math.max(1_000, this.pace));
      if (answer.cancelRequested) this.#cancelling.abort();
    } catch (error) {
      // 409: another worker has it by now. 404: its run is gone.
      if (!(error instanceof Refused) || ![404, 409].includes(error.status)) throw error;
      this.#cancelling.abort();
    }
  }

  async submit(outcome) {
    const until = Date.now() + SUBMIT_FOR_MS;
    const pauses = new Pauses();
    let isReplaced = false;
    for (;;) {
      try {
        await this.#server.post(this.#path, { outcome });
        return;
      } catch (error) {
        if (!(error instanceof Unreachable) || Date.now() > until) {
          console.warn(`the outcome of ${this.nodeId} in ${this.runId} is not taken: ${error.message}`);
          if (isReplaced || NOT_OURS.includes(error.status)) return;
          // Without an outcome the lease would end, and the activity would be done again, for ever. A server that refuses a
          // large outcome may close the connection while it is written, which looks as if it were away.
          outcome = failed("outcome_refused", `the server did not take the outcome: ${error.message}`, false);
          isReplaced = true;
          continue;
        }
      }
      await sleep(pauses.next());
    }
  }
}

export class Worker {
  #server;
  #name;
  #free;
  #steps = new Map();
  #stopping = new AbortController();
  #atHand = new Set();
  #refused;
  /** Queues that wait for places, the first to get one in front. */
  #line = [];
  /** Calls for work, each of which holds the places of all activities that it may get. */
  #nCalls = 0;

  constructor(options = {}) {
    const key = options.key ?? process.env.WOPR_API_KEY;
    if (!key) throw new Error("no API key: give one, or set WOPR_API_KEY");
    this.#server = new Server(options.server ?? process.env.WOPR_SERVER ?? "http://127.0.0.1:8080", key);
    this.#name = options.name ?? `node-${process.pid}`;
    const concurrency = options.concurrency ?? 8;
    if (!(concurrency >= 1)) throw new Error(`concurrency is ${concurrency}; it must be at least 1`);
    this.#free = Math.floor(concurrency);
  }

  step(queue, work) {
    if (this.#steps.has(queue)) throw new Error(`the queue ${queue} has a function already`);
    this.#steps.set(queue, work);
    return work;
  }

  stop() {
    this.#stopping.abort();
    for (const taken of this.#line.splice(0)) taken(0);
  }

  async run() {
    const stop = () => this.stop();
    // Not `once`: a second signal would then kill the process in the middle of its activities.
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
    try {
      await Promise.all([...this.#steps].map(([queue, work]) => this.#lease(queue, work)));
      await Promise.all(this.#atHand);
    } finally {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
    }
    if (this.#refused) throw this.#refused;
  }

  async #lease(queue, work) {
    let pauses = new Pauses();
    while (!this.#stopping.signal.aborted) {
      const max = await this.#take();
      if (max === 0) break;
      // Another queue has no place to call with.
      const isShort = this.#free === 0 && this.#nCalls < this.#steps.size;
      let leased = [];
      try {
        const body = { queue, worker: this.#name, max, waitMs: isShort ? SHORT_WAIT_MS : WAIT_MS };
        const path = "/v1/activities:lease";
        ({ activities: leased } = await this.#server.post(path, body, this.#stopping.signal, WAIT_MS + ANSWER_MS));
        pauses = new Pauses();
      } catch (error) {
        if (error instanceof Refused && !MAY_PASS.includes(error.status)) {
          this.#refused = new WorkRefused(queue, error);
          this.stop();
        }
        if (this.#stopping.signal.aborted) break;
        console.warn(`cannot lease from ${queue}: ${error.message}`);
        this.#nCalls -= 1;
        this.#release(max);
        await sleep(pauses.next());
        continue;
      }
      this.#nCalls -= 1;
      this.#release(max - leased.length);
      for (const one of leased) {
        const working = this.#work(work, one).finally(() => {
          this.#atHand.delete(working);
          this.#release(1);
        });
        this.#atHand.add(working);
      }
    }
  }

  /** Waits in line for places of a call. Resolves to how many there are; none if the worker stops. */
  #take() {
    return new Promise((resolve) => {
      this.#line.push(resolve);
      this.#release(0);
    });
  }

  /** Gives places back, and hands those that are free to the queues that wait, in their order. */
  #release(n) {
    this.#free += n;
    while (this.#free > 0 && this.#line.length > 0) {
      // Other queues need places too.
      const share = Math.min(MOST, Math.ceil(this.#free / this.#steps.size));
      this.#free -= share;
      this.#nCalls += 1;
      this.#line.shift()(share);
    }
  }

  async #work(work, leased) {
    const activity = new Activity(this.#server, leased);
    const beating = setInterval(() => {
      if (activity.signal.aborted) return;
      activity.beat({}).catch((error) => {
        console.warn(`no heartbeat for ${activity.nodeId} in ${activity.runId}: ${error.message}`);
      });
    }, activity.pace);
    try {
      await activity.submit(await outcomeOf(work, leased.input, activity));
    } finally {
      clearInterval(beating);
    }
  }
}

async function outcomeOf(work, input, activity) {
  try {
    const result = await work(input, activity);
    const outcome = { ok: true, result: result ?? {} };
    JSON.stringify(outcome);
    return outcome;
  } catch (error) {
    if (error instanceof Failure) return failed(error.code, error.message, error.retryable);
    console.error(error);
    return failed("worker_failed", String(error), false);
  }
}

function failed(code, message, retryable) {
  return { ok: false, error: { code: cut(code, 128) || "worker_failed", message: cut(message, 8_192), retryable } };
}

/** The beginning of a text that has at most so many bytes. */
function cut(text, bytes) {
  const whole = new TextEncoder().encode(text);
  return new TextDecoder().decode(whole.slice(0, bytes), { stream: true });
}
