// Command bench measures outbox-relay against floors: raw clients that do only one step of its work, measured in turn in
// the same run. It starts a throwaway PostgreSQL and RabbitMQ with the durability of production, runs the relay as a
// process of its own, and prints a table of medians and ratios in Markdown. Every event carries a number; what a consumer
// misses ends the run with an error.
//
// Limits: servers, relay, writers and consumer share one machine, so figures of two machines, or of two runs on a busy
// one, don't compare; ratios within a run do. It reads /proc, so it runs on Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

// scenarios in the order in which they run.
var scenarios = []struct {
	name string
	run  func(ctx context.Context, b *bench) error
}{
	{"latency", latency},
	{"drain", drain},
	{"idle", idle},
	{"writers", writers},
	{"everything", everything},
	{"backlog", backlog},
	{"snapshot", snapshot},
	{"writing", writing},
	{"failed", failed},
	{"several", several},
	{"memory", memory},
	{"churn", churn},
	{"peers", peers},
}

func main() { os.Exit(run()) }

func run() int {
	var b bench
	selected := flag.String("run", "", "run only scenarios whose name matches this regular expression")
	flag.IntVar(&b.rounds, "rounds", 3, "rounds, of which the medians are printed")
	flag.BoolVar(&b.quick, "quick", false, "a tenth of the size: to see that it works, not for figures")
	flag.BoolVar(&b.large, "large", false, "the largest sizes, too: some minutes and some gigabytes more")
	flag.DurationVar(&b.hold, "hold", time.Minute, "how long the transaction of the scenario writing stays open")
	flag.StringVar(&b.relay, "relay", "", "outbox-relay program to measure; default: built from the module beside this one")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [flags] [-- flags of outbox-relay run]\n\nscenarios: %s\n\n", names())
		flag.PrintDefaults()
	}
	flag.Parse()
	b.relayFlags = flag.Args()
	pattern, err := regexp.Compile(*selected)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, pattern); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func names() string {
	var all []string
	for _, s := range scenarios {
		all = append(all, s.name)
	}
	return strings.Join(all, ", ")
}

// bench is one run: its servers, its settings and its report.
type bench struct {
	rounds     int
	quick      bool
	large      bool
	hold       time.Duration
	relay      string
	relayFlags []string

	stack  *stack.Stack
	dir    string
	report report
	places int
}

func (b *bench) run(ctx context.Context, pattern *regexp.Regexp) (err error) {
	if b.stack, err = stack.Start(ctx, stack.Options{Log: os.Stderr}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stack.Close()) }()
	if b.dir, err = os.MkdirTemp("", "outbox-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.relay == "" {
		if b.relay, err = build(ctx, b.dir); err != nil {
			return err
		}
	}
	b.report.begin(ctx, b)
	for _, s := range scenarios {
		if !pattern.MatchString(s.name) {
			continue
		}
		began := time.Now()
		err := s.run(ctx, b)
		b.report.print()
		b.log("%s took %s", s.name, time.Since(began).Round(time.Second))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// build builds the relay as its own module says.
func build(ctx context.Context, dir string) (string, error) {
	source, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/outbox-relay/outbox-relay").Output()
	if err != nil {
		return "", fmt.Errorf("looking for the relay's source (run this in bench/, or give -relay): %w", err)
	}
	program := filepath.Join(dir, "outbox-relay")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	cmd.Dir = strings.TrimSpace(string(source))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	return program, nil
}

// log tells of progress.
func (b *bench) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// size is n, or a tenth of it with -quick.
func (b *bench) size(n int) int {
	if b.quick {
		return max(n/10, 1)
	}
	return n
}

func (b *bench) duration(d time.Duration) time.Duration {
	if b.quick {
		return d / 10
	}
	return d
}

// eachRound calls measure as often as -rounds says.
func (b *bench) eachRound(ctx context.Context, measure func(ctx context.Context) error) error {
	for range b.rounds {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}
