// SPDX-License-Identifier: MIT

// River as a peer; ../README.md describes the arguments and the output.  Settings: "bench" has the intervals and the number of
// workers of its own command `river bench`, "default" those of the library with 100 workers.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	pause   = 20 * time.Millisecond // between two tasks of the live work, so that the worker is idle again
	atOnce  = 5000                  // tasks of one insertion
	library = "github.com/riverqueue/river"
)

type nothing struct {
	ID int `json:"id"`
}

func (nothing) Kind() string { return "nothing" }

type peer struct {
	river.WorkerDefaults[nothing]
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	left   atomic.Int64
	all    chan struct{}  // closed when none is left
	began  chan time.Time // live
}

func (p *peer) Work(_ context.Context, _ *river.Job[nothing]) error {
	if p.began != nil {
		p.began <- time.Now()
	} else if p.left.Add(-1) == 0 {
		close(p.all)
	}
	return nil
}

func (p *peer) open(ctx context.Context, settings string) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DIBS_PEER_URI"))
	if err != nil {
		return err
	}
	config.MaxConns = 25
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	// A schema of its own, which a run begins without.
	for _, text := range []string{"DROP SCHEMA IF EXISTS river CASCADE", "CREATE SCHEMA river"} {
		if _, err = p.pool.Exec(ctx, text); err != nil {
			return err
		}
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: "river", Logger: quiet})
	if err != nil {
		return err
	}
	if _, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, p)
	options := river.Config{Schema: "river", Logger: quiet, Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}}
	if settings == "bench" {
		options.FetchCooldown = 2 * time.Millisecond
		options.FetchPollInterval = 20 * time.Millisecond
		options.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 2000}
	}
	p.client, err = river.NewClient(driver, &options)
	return err
}

func (p *peer) fill(ctx context.Context, tasks int) error {
	for at := 0; at < tasks; at += atOnce {
		many := make([]river.InsertManyParams, min(atOnce, tasks-at))
		for i := range many {
			many[i].Args = nothing{at + i}
		}
		if _, err := p.client.InsertManyFast(ctx, many); err != nil {
			return err
		}
	}
	_, err := p.pool.Exec(ctx, "VACUUM ANALYZE river.river_job")
	return err
}

func waitForLine() {
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func (p *peer) drain(ctx context.Context, tasks int) (map[string]any, error) {
	if err := p.fill(ctx, tasks); err != nil {
		return nil, err
	}
	p.left.Store(int64(tasks))
	p.all = make(chan struct{})
	waitForLine()
	cpu, from := cpuSeconds(), time.Now()
	if err := p.client.Start(ctx); err != nil {
		return nil, err
	}
	<-p.all
	if err := p.client.Stop(ctx); err != nil { // commits the completions that wait
		return nil, err
	}
	got := map[string]any{"seconds": time.Since(from).Seconds(), "cpu_s": cpuSeconds() - cpu}
	var left int
	err := p.pool.QueryRow(ctx, "SELECT count(*) FROM river.river_job WHERE state <> 'completed'").Scan(&left)
	got["left"] = left
	return got, err
}

func (p *peer) live(ctx context.Context, tasks int) (map[string]any, error) {
	p.began = make(chan time.Time, 1)
	if err := p.client.Start(ctx); err != nil {
		return nil, err
	}
	one := func() (float64, error) {
		from := time.Now()
		if _, err := p.client.Insert(ctx, nothing{}, nil); err != nil {
			return 0, err
		}
		return float64((<-p.began).Sub(from).Nanoseconds()) / 1e3, nil
	}
	if _, err := one(); err != nil {
		return nil, err
	}
	waitForLine()
	starts := make([]float64, 0, tasks)
	for range tasks {
		time.Sleep(pause)
		start, err := one()
		if err != nil {
			return nil, err
		}
		starts = append(starts, start)
	}
	return map[string]any{"starts_us": starts}, p.client.Stop(ctx)
}

func run() error {
	work := flag.String("work", "drain", "drain or live")
	settings := flag.String("settings", "bench", "bench or default")
	tasks := flag.Int("tasks", 1000, "how many")
	flag.Parse()
	ctx := context.Background()
	p := &peer{}
	if err := p.open(ctx, *settings); err != nil {
		return err
	}
	does := p.drain
	if *work == "live" {
		does = p.live
	}
	got, err := does(ctx, *tasks)
	if err != nil {
		return err
	}
	got["tasks"] = *tasks
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == library {
				got["version"] = dep.Version
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(got)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}
