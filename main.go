// Outbox-relay publishes the events of a PostgreSQL outbox table to RabbitMQ.
//
// Exit codes: 0 done, or asked to stop; 1 failed; 2 wrong usage or settings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/outbox-relay/outbox-relay/command"
	"github.com/outbox-relay/outbox-relay/config"
)

const (
	exitDone = iota
	exitFailed
	exitWrongUsage
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, lookupEnv func(string) (string, bool),
	stdin io.Reader, stdout, stderr io.Writer,
) int {
	var cli command.CLI
	settings := config.NewLoader(lookupEnv)
	helped := false
	parser, err := settings.Parser(&cli,
		kong.Name("outbox-relay"),
		kong.Description("Publishes the events of a PostgreSQL outbox table to RabbitMQ."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(func(int) { helped = true }), // kong exits after --help, and only then
	)
	if err != nil {
		panic(err) // the struct's tags are wrong
	}
	parsed, usage := parser.Parse(args)
	if helped {
		return exitDone
	}
	if problems := settings.Err(); usage != nil || problems != nil {
		reportWrongUsage(stderr, usage, problems)
		return exitWrongUsage
	}

	ctx, stop := untilSignal(ctx, stderr)
	defer stop()
	env := &command.Env{Stdin: stdin, Stdout: stdout, Stderr: stderr, LookupEnv: lookupEnv, Log: slog.New(slog.DiscardHandler)}
	logs, ok := parsed.Selected().Target.Addr().Interface().(interface {
		Logger(w io.Writer, noColor bool) *slog.Logger
	})
	if ok {
		noColor, _ := lookupEnv("NO_COLOR")
		env.Log = logs.Logger(stderr, noColor != "")
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	if err := parsed.Run(env); err != nil {
		if ok {
			env.Log.Error("failed", "error", err)
		} else {
			fmt.Fprintf(stderr, "outbox-relay: %v\n", err)
		}
		return exitFailed
	}
	return exitDone
}

func reportWrongUsage(stderr io.Writer, usage, problems error) {
	if usage != nil {
		fmt.Fprintf(stderr, "outbox-relay: %s; see outbox-relay --help\n", config.Redact(usage.Error()))
	}
	var wrong *config.Error
	if errors.As(problems, &wrong) {
		fmt.Fprintf(stderr, "outbox-relay: wrong settings:\n  %s\n", strings.Join(wrong.Problems, "\n  "))
	}
}

// sameSignal is the time in which a signal that comes again is the same one: timeout(1), and a terminal together with a
// parent that passes signals on, deliver it twice.
const sameSignal = 300 * time.Millisecond

// untilSignal returns a context that the first SIGINT or SIGTERM ends; the second ends the process. The returned function
// stops listening and waits for the one goroutine.
func untilSignal(ctx context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					cancel(fmt.Errorf("received signal %s", s))
				case time.Since(first) > sameSignal:
					fmt.Fprintf(stderr, "outbox-relay: %s again, ending at once\n", s)
					os.Exit(exitFailed)
				}
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		watcher.Wait()
		cancel(nil)
	}
}
