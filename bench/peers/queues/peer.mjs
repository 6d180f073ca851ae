// SPDX-License-Identifier: MIT
// What the queues of this folder share: the arguments and the output of a peer (../README.md), and the two works.
//
// A queue is an object with fill(n): adds n tasks to an empty queue; drain(n): completes them all, and returns when that
// is committed; left(): how many unfinished tasks the queue has; listen(begun): a worker that calls begun for each task; add(): adds one task;
// stop(): ends the worker.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import process from "node:process";

// The installed modules are beside the build, not beside this file.
export const require = createRequire(process.env.DIBS_PEER_MODULES + "/");
export const uri = process.env.DIBS_PEER_URI;
export const asked = {};
for (let i = 2; i + 1 < process.argv.length; i += 2) asked[process.argv[i].replace(/^--/, "")] = process.argv[i + 1];
asked.tasks = Number(asked.tasks);

const PAUSE_MS = 20; // between two tasks of the live work, so that the worker is idle again
const now = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function go() {
  console.log("ready");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  process.stdin.pause();
}

async function drain(queue) {
  await queue.fill(asked.tasks);
  await go();
  const cpu = process.cpuUsage();
  const from = now();
  await queue.drain(asked.tasks);
  const seconds = (now() - from) / 1e9;
  const used = process.cpuUsage(cpu);
  return { seconds, left: await queue.left(), cpu_s: (used.user + used.system) / 1e6 };
}

async function live(queue) {
  let begun = () => {};
  await queue.fill(0);
  await queue.listen(() => begun());
  const one = async () => {
    const from = now();
    const start = new Promise((resolve) => (begun = resolve)).then(() => (now() - from) / 1e3);
    await queue.add();
    return start;
  };
  await one();
  await go();
  const starts_us = [];
  for (let i = 0; i < asked.tasks; i++) {
    await sleep(PAUSE_MS);
    starts_us.push(await one());
  }
  await queue.stop();
  return { starts_us };
}

export async function run(module, queue) {
  const got = await (asked.work === "live" ? live(queue) : drain(queue));
  const { version } = JSON.parse(readFileSync(`${process.env.DIBS_PEER_MODULES}/node_modules/${module}/package.json`));
  console.log(JSON.stringify({ version, tasks: asked.tasks, ...got }));
  process.exit(0);
}
