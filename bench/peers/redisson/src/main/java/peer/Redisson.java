// SPDX-License-Identifier: MIT
package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.TransportMode;

/** Redisson's RLock and RFencedLock as a peer; ../../../../README.md describes the arguments and the output of a peer. */
public final class Redisson {
  /** Without a watchdog: the cheapest way to lock that Redisson documents. */
  private static final long LEASE_S = 30;

  /** When a worker asked, was granted, began to release and had released; by the one monotonic clock of the machine. */
  private static final class Log {
    long[] stamps = new long[1 << 16];
    int used;

    void add(long asked, long granted, long leaving, long released) {
      if (used + 4 > stamps.length) stamps = Arrays.copyOf(stamps, 2 * stamps.length);
      stamps[used++] = asked;
      stamps[used++] = granted;
      stamps[used++] = leaving;
      stamps[used++] = released;
    }
  }

  private static RedissonClient connect(Map<String, String> asked, int workers) {
    Config config = new Config();
    config.setCodec(StringCodec.INSTANCE);
    config.setTransportMode(TransportMode.EPOLL);
    // The defaults, 32 and 16, are for larger machines and one process; few threads serve few workers faster.
    config.setNettyThreads(workers == 1 ? 2 : 8);
    config.setThreads(workers == 1 ? 2 : 16);
    String user = asked.get("user");
    config
        .useSingleServer()
        .setAddress("redis://" + asked.get("host") + ":" + asked.get("port"))
        .setUsername(user == null || user.isEmpty() ? null : user)
        .setPassword(System.getenv("DIBS_PEER_PASSWORD"))
        .setConnectionMinimumIdleSize(workers == 1 ? 2 : workers)
        .setConnectionPoolSize(workers == 1 ? 4 : 2 * workers)
        .setSubscriptionConnectionMinimumIdleSize(1)
        .setSubscriptionConnectionPoolSize(4);
    return org.redisson.Redisson.create(config);
  }

  private static void turns(RedissonClient client, String kind, String name, long until, Log log) {
    RLock lock = kind.equals("fenced") ? client.getFencedLock(name) : client.getLock(name);
    do {
      long asked = System.nanoTime();
      if (lock instanceof RFencedLock) ((RFencedLock) lock).lockAndGetToken(LEASE_S, TimeUnit.SECONDS);
      else lock.lock(LEASE_S, TimeUnit.SECONDS);
      long granted = System.nanoTime();
      long leaving = granted;
      lock.unlock();
      log.add(asked, granted, leaving, System.nanoTime());
    } while (System.nanoTime() < until);
  }

  private static Log[] run(RedissonClient client, Map<String, String> asked, String prefix, double seconds)
      throws InterruptedException {
    int workers = Integer.parseInt(asked.get("workers"));
    boolean same = asked.get("workload").equals("same");
    Log[] logs = new Log[workers];
    Thread[] threads = new Thread[workers];
    long until = System.nanoTime() + (long) (seconds * 1e9);
    for (int i = 0; i < workers; i++) {
      Log log = logs[i] = new Log();
      String name = same ? prefix : prefix + ":" + i;
      threads[i] = new Thread(() -> turns(client, asked.get("lock"), name, until, log));
    }
    for (Thread thread : threads) thread.start();
    for (Thread thread : threads) thread.join();
    return logs;
  }

  private static double cpuSeconds() {
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }

  /** By the name of the file that it came in: redisson-VERSION.jar. */
  private static String version() {
    String from = org.redisson.Redisson.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return from.replaceFirst(".*redisson-", "").replaceFirst("[.]jar$", "");
  }

  private static void write(String file, Log[] logs) throws java.io.IOException {
    StringBuilder line = new StringBuilder();
    try (PrintStream out = new PrintStream(file, StandardCharsets.US_ASCII)) {
      for (int i = 0; i < logs.length; i++) {
        for (int at = 0; at < logs[i].used; at += 4) {
          line.setLength(0);
          line.append(i);
          for (int j = 0; j < 4; j++) line.append(' ').append(logs[i].stamps[at + j]);
          out.append(line.append('\n'));
        }
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> asked = new HashMap<>();
    for (int i = 0; i + 1 < args.length; i += 2) asked.put(args[i].replaceFirst("^--", ""), args[i + 1]);
    RedissonClient client = connect(asked, Integer.parseInt(asked.get("workers")));
    String name = asked.get("name");
    run(client, asked, name + ":warm", Double.parseDouble(asked.get("warm")));
    System.out.println("ready");
    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII)).readLine();
    double cpu = cpuSeconds();
    Log[] logs = run(client, asked, name, Double.parseDouble(asked.get("seconds")));
    cpu = cpuSeconds() - cpu;
    write(asked.get("log"), logs);
    System.out.println(
        "{\"version\":\"" + version() + "\",\"cpu_s\":" + cpu + "}");
    client.shutdown(0, 1, TimeUnit.SECONDS);
  }
}
