/** Functions that do the work of workflow steps which wopr runs. */

export interface WorkerOptions {
  /** The address of the server: `WOPR_SERVER`, else `http://127.0.0.1:8080`. */
  server?: string;
  /** An API key with the scope `activities:work`: `WOPR_API_KEY`. */
  key?: string;
  /** The name of the worker, for people who list the workers. */
  name?: string;
  /** The most activities at the same time; 8 by default. */
  concurrency?: number;
}

/** An activity that the worker has leased. */
export interface Activity {
  readonly runId: string;
  readonly nodeId: string;
  readonly ordinal: number;
  readonly attempt: number;
  readonly queue: string;
  /** The same whenever this step is worked at, however often it is handed out. */
  readonly idempotencyKey: string;
  /** Aborts once nobody waits for the outcome any more. */
  readonly signal: AbortSignal;
  /**
   * Says how far the work is. The details become an event of the run. A report that does not reach the server is lost,
   * and the work goes on.
   */
  report(details: unknown): Promise<void>;
}

export type Step<Input = any> = (input: Input, activity: Activity) => unknown;

/** Fails an activity with a code. */
export class Failure extends Error {
  constructor(code: string, message?: string, options?: { retryable?: boolean });
  readonly code: string;
  readonly retryable: boolean;
}

/** The server refuses to hand out work, for example because the key is wrong or lacks `activities:work`. */
export class WorkRefused extends Error {
  readonly status: number;
}

export class Worker {
  constructor(options?: WorkerOptions);
  /** Makes a function do the activities of a queue. */
  step<Input = any>(queue: string, work: Step<Input>): Step<Input>;
  /**
   * Works until `stop`, SIGINT or SIGTERM, and ends what is at hand. Rejects with `WorkRefused` if the server refuses to
   * hand out work.
   */
  run(): Promise<void>;
  /** Leases nothing more. `run` resolves once the activities at hand have ended. */
  stop(): void;
}
