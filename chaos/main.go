// Command chaos hurts relays and their servers at random, and then holds what was committed against what was consumed.
//
//	chaos [-seed N] [-duration 10m] [-relays 4] [-quorum] [-only TEXT] [-keep] [-verbose]
//
// It starts a PostgreSQL and a RabbitMQ of its own, builds the relay, and lets writers commit numbered events and consumers
// apply each once, while faults arrive alone and in pairs. When the faults are over everything is resumed and has to drain.
// docs/chaos.md says what is done and what is counted.
//
// The seed fixes which faults come, to whom and for how long, and what writers write; not when a process is hit, so the
// same seed does not replay a run to the letter. Exit code 0: all promises held. 1: they did not, or the harness failed;
// the logs are kept then. 130: interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(start()) }

func start() int {
	o := options{out: os.Stdout}
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "`number` that faults and writes are drawn from")
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "time in which faults arrive")
	flag.IntVar(&o.relays, "relays", 4, "most relays at once, 2 or more")
	flag.BoolVar(&o.quorum, "quorum", false, "consume from a quorum queue instead of a classic one")
	flag.StringVar(&o.only, "only", "", "only faults whose names contain this `text`")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs of a run without findings, too")
	flag.BoolVar(&o.verbose, "verbose", false, "tell each fault as it comes")
	flag.Parse()
	if flag.NArg() > 0 || o.relays < 2 || o.duration <= 0 || len(chosen(o.only)) == 0 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch err := run(ctx, o); {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "chaos: interrupted")
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	return 0
}
