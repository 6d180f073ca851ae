// SPDX-License-Identifier: MIT
// npm's pg-boss as a peer; peer.mjs.  Settings: how many jobs each fetch and each completion has.  Four loops fetch and complete.
import { asked, require, run, uri } from "./peer.mjs";

const PgBoss = require("pg-boss");
const { Pool } = require("pg");

const LOOPS = 4;
const batchSize = Number(asked.settings);
const pool = new Pool({ connectionString: uri, max: 1 });
const boss = new PgBoss({ connectionString: uri, max: LOOPS, supervise: false, schedule: false });
boss.on("error", () => {});

const queue = {
  async fill(tasks) {
    await pool.query("DROP SCHEMA IF EXISTS pgboss CASCADE");
    await boss.start();
    await boss.createQueue("nothing");
    for (let at = 0; at < tasks; at += 5000) {
      const count = Math.min(5000, tasks - at);
      await boss.insert(Array.from({ length: count }, (_, i) => ({ name: "nothing", data: { id: at + i } })));
    }
    await pool.query("VACUUM ANALYZE pgboss.job");
  },
  async drain() {
    await Promise.all(
      Array.from({ length: LOOPS }, async () => {
        for (let jobs; (jobs = await boss.fetch("nothing", { batchSize })).length > 0; ) {
          await boss.complete(
            "nothing",
            jobs.map((job) => job.id),
          );
        }
      }),
    );
  },
  async left() {
    return Number((await pool.query("SELECT count(*) FROM pgboss.job WHERE state < 'completed'")).rows[0].count);
  },
  async listen(begun) {
    await boss.work("nothing", { batchSize: 1, pollingIntervalSeconds: 0.5 }, async () => begun());
  },
  async add() {
    await boss.send("nothing", { id: 1 });
  },
  async stop() {
    await boss.stop({ graceful: false, wait: false });
  },
};

await run("pg-boss", queue);
