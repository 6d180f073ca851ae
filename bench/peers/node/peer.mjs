// SPDX-License-Identifier: MIT
// npm's redlock as a peer; ../README.md describes the arguments and the output of a peer.  Lock kinds: "default" has the library's settings (200 ms between tries, up to 100 more), but never gives up; "1ms" tries every millisecond.
import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import process from "node:process";

// The installed modules are beside the build, not beside this file.
const require = createRequire(process.env.DIBS_PEER_MODULES + "/");
const { Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const asked = {};
for (let i = 2; i + 1 < process.argv.length; i += 2) asked[process.argv[i].replace(/^--/, "")] = process.argv[i + 1];
const workers = Number(asked.workers);
const TTL_MS = 30000;

const now = () => {
  const [s, ns] = process.hrtime();
  return s * 1e9 + ns;
};

const client = new Redis({
  host: asked.host,
  port: Number(asked.port),
  username: asked.user || undefined,
  password: process.env.DIBS_PEER_PASSWORD || undefined,
  enableAutoPipelining: false, // with it redlock's scripts are no faster, and alone they are slower
});
const settings = { retryCount: -1, automaticExtensionThreshold: 500 };
const redlock = new Redlock(
  [client],
  asked.lock === "1ms" ? { ...settings, retryDelay: 1, retryJitter: 1 } : { ...settings, retryDelay: 200, retryJitter: 100 },
);
redlock.on("error", () => {}); // each refused try emits an error

async function turns(name, until, log) {
  do {
    const begun = now();
    const lock = await redlock.acquire([name], TTL_MS);
    const granted = now();
    await lock.release();
    log.push(begun, granted, granted, now());
  } while (now() < until);
}

async function run(prefix, seconds) {
  const until = now() + seconds * 1e9;
  const logs = Array.from({ length: workers }, () => []);
  await Promise.all(logs.map((log, i) => turns(asked.workload === "same" ? prefix : `${prefix}:${i}`, until, log)));
  return logs;
}

function write(file, logs) {
  const fd = openSync(file, "w");
  logs.forEach((log, worker) => {
    const lines = [];
    for (let at = 0; at < log.length; at += 4) lines.push(`${worker} ${log.slice(at, at + 4).join(" ")}\n`);
    writeSync(fd, lines.join(""));
  });
  closeSync(fd);
}

await run(`${asked.name}:warm`, Number(asked.warm));
console.log("ready");
await new Promise((resolve) => process.stdin.once("data", resolve));
process.stdin.pause();
const before = process.cpuUsage();
const logs = await run(asked.name, Number(asked.seconds));
const used = process.cpuUsage(before);
write(asked.log, logs);
const { version } = JSON.parse(readFileSync(`${process.env.DIBS_PEER_MODULES}/node_modules/redlock/package.json`));
console.log(JSON.stringify({ version, cpu_s: (used.user + used.system) / 1e6 }));
client.disconnect();
