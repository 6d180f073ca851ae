// SPDX-License-Identifier: MIT
// npm's graphile-worker as a peer; peer.mjs.  Settings: "batched" is what its page about performance measures with (24 jobs at
// once, a local queue of 500, completions in batches); "basic" has neither queue nor batches.
import { setTimeout as sleep } from "node:timers/promises";

import { asked, require, run, uri } from "./peer.mjs";

const { Logger, run: start, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");

const batched = asked.settings === "batched";
const pool = new Pool({ connectionString: uri, max: 2 });
const preset = {
  worker: {
    connectionString: uri,
    concurrentJobs: 24,
    maxPoolSize: 25,
    ...(batched ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}),
  },
};
const logger = new Logger(() => () => {});
let runner;

const queue = {
  async fill(tasks) {
    await pool.query("DROP SCHEMA IF EXISTS graphile_worker CASCADE");
    await runMigrations({ connectionString: uri, logger });
    for (let at = 0; at < tasks; at += 10000) {
      await pool.query(
        "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(SELECT json_populate_record(" +
          "NULL::graphile_worker.job_spec, json_build_object('identifier', 'nothing', 'payload', json_build_object('id', n)))" +
          " FROM generate_series(1, $1::int) n))",
        [Math.min(10000, tasks - at)],
      );
    }
    await pool.query("VACUUM ANALYZE graphile_worker._private_jobs");
  },
  async drain(tasks) {
    let done;
    let left = tasks;
    const all = new Promise((resolve) => (done = resolve));
    const nothing = async () => {
      if (--left === 0) done();
    };
    runner = await start({ preset, logger, noHandleSignals: true, taskList: { nothing } });
    await all;
    while ((await queue.left()) > 0) await sleep(1); // its stop() does not wait for all completions
    await runner.stop();
  },
  async left() {
    return Number((await pool.query("SELECT count(*) FROM graphile_worker._private_jobs")).rows[0].count);
  },
  async listen(begun) {
    runner = await start({ preset, logger, noHandleSignals: true, taskList: { nothing: async () => begun() } });
  },
  async add() {
    await runner.addJob("nothing", { id: 1 });
  },
  async stop() {
    await runner.stop();
  },
};

await run("graphile-worker", queue);
