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
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's InterProcessMutex as a peer; ../../../../README.md describes the arguments and the output of a peer. One client, and so
 * one session, for the process, as Curator recommends.
 */
public final class Curator {
  private static final int PATIENCE_S = 30;

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

  private static CuratorFramework connect(Map<String, String> asked) throws InterruptedException {
    CuratorFramework client =
        CuratorFrameworkFactory.newClient(
            asked.get("host") + ":" + asked.get("port"), new ExponentialBackoffRetry(100, 10));
    client.start();
    if (!client.blockUntilConnected(PATIENCE_S, TimeUnit.SECONDS)) {
      throw new IllegalStateException("ZooKeeper cannot be reached");
    }
    return client;
  }

  private static void turns(CuratorFramework client, String name, long until, Log log) {
    InterProcessMutex lock = new InterProcessMutex(client, "/peers/" + name);
    try {
      do {
        long asked = System.nanoTime();
        lock.acquire();
        long granted = System.nanoTime();
        long leaving = granted;
        lock.release();
        log.add(asked, granted, leaving, System.nanoTime());
      } while (System.nanoTime() < until);
    } catch (Exception why) {
      throw new IllegalStateException(why);
    }
  }

  private static Log[] run(CuratorFramework client, Map<String, String> asked, String prefix, double seconds)
      throws InterruptedException {
    int workers = Integer.parseInt(asked.get("workers"));
    boolean same = asked.get("workload").equals("same");
    Log[] logs = new Log[workers];
    Thread[] threads = new Thread[workers];
    long until = System.nanoTime() + (long) (seconds * 1e9);
    for (int i = 0; i < workers; i++) {
      Log log = logs[i] = new Log();
      String name = same ? prefix : prefix + ":" + i;
      threads[i] = new Thread(() -> turns(client, name, until, log));
    }
    for (Thread thread : threads) thread.start();
    for (Thread thread : threads) thread.join();
    return logs;
  }

  private static double cpuSeconds() {
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }

  /** By the name of the file that it came in: curator-recipes-VERSION.jar. */
  private static String version() {
    String from = InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return from.replaceFirst(".*curator-recipes-", "").replaceFirst("[.]jar$", "");
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
    Thread.setDefaultUncaughtExceptionHandler(
        (thread, why) -> {
          why.printStackTrace();
          Runtime.getRuntime().halt(1);
        });
    CuratorFramework client = connect(asked);
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
    client.close();
  }
}
