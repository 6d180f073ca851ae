// SPDX-License-Identifier: MIT

// The Mutex of etcd's own client as a peer; ../README.md describes the arguments and the output.  A client for the process, and a
// session with a lease of 30 s for each worker.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

const (
	leaseS   = 30
	patience = 30 * time.Second
	library  = "go.etcd.io/etcd/client/v3"
)

var (
	host     = flag.String("host", "", "")
	port     = flag.Int("port", 0, "")
	_        = flag.String("user", "", "")
	_        = flag.String("lock", "", "")
	workload = flag.String("workload", "own", "")
	workers  = flag.Int("workers", 1, "")
	seconds  = flag.Float64("seconds", 1, "")
	warm     = flag.Float64("warm", 0, "")
	prefix   = flag.String("name", "", "")
	file     = flag.String("log", "", "")
)

// Asked, granted, leaving, released: by the one monotonic clock of the machine.
type turn [4]int64

func now() int64 {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &at)
	return at.Nano()
}

func turns(session *concurrency.Session, name string, until int64) ([]turn, error) {
	var log []turn
	for {
		var t turn
		mutex := concurrency.NewMutex(session, name)
		t[0] = now()
		if err := mutex.Lock(context.Background()); err != nil {
			return nil, err
		}
		t[1] = now()
		t[2] = t[1]
		if err := mutex.Unlock(context.Background()); err != nil {
			return nil, err
		}
		t[3] = now()
		log = append(log, t)
		if t[3] >= until {
			return log, nil
		}
	}
}

func run(sessions []*concurrency.Session, name string, length float64) ([][]turn, error) {
	logs := make([][]turn, len(sessions))
	errs := make([]error, len(sessions))
	until := now() + int64(length*1e9)
	var all sync.WaitGroup
	for i, session := range sessions {
		own := name
		if *workload != "same" {
			own = fmt.Sprintf("%s:%d", name, i)
		}
		all.Add(1)
		go func() {
			defer all.Done()
			logs[i], errs[i] = turns(session, own, until)
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return logs, nil
}

func connect() ([]*concurrency.Session, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{fmt.Sprintf("%s:%d", *host, *port)}, DialTimeout: patience})
	if err != nil {
		return nil, err
	}
	sessions := make([]*concurrency.Session, *workers)
	for i := range sessions {
		if sessions[i], err = concurrency.NewSession(client, concurrency.WithTTL(leaseS)); err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func write(logs [][]turn) error {
	out, err := os.Create(*file)
	if err != nil {
		return err
	}
	lines := bufio.NewWriter(out)
	for i, log := range logs {
		for _, t := range log {
			fmt.Fprintln(lines, i, t[0], t[1], t[2], t[3])
		}
	}
	if err = lines.Flush(); err != nil {
		return err
	}
	return out.Close()
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, one := range info.Deps {
		if one.Path == library {
			return one.Version
		}
	}
	return ""
}

func work() error {
	sessions, err := connect()
	if err != nil {
		return err
	}
	if _, err = run(sessions, *prefix+":warm", *warm); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	cpu := cpuSeconds()
	logs, err := run(sessions, *prefix, *seconds)
	if err != nil {
		return err
	}
	cpu = cpuSeconds() - cpu
	if err = write(logs); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"version": version(), "cpu_s": cpu})
}

func main() {
	flag.Parse()
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
