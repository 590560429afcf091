package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

const (
	readyTimeout = 20 * time.Second
	// grace is the relay's own limit to its end; after stopTimeout it is killed.
	grace       = 5 * time.Second
	stopTimeout = 10 * time.Second
)

// relayProcess is `outbox-relay run`. It has one goroutine, which waits for its end.
type relayProcess struct {
	cmd      *exec.Cmd
	url      string // of its HTTP server
	logfile  string
	stopping atomic.Bool
	done     chan struct{}
}

// startRelay starts it with its log in dir. died is called when it ends without being asked to.
func startRelay(program, dir string, p place, died func(error)) (*relayProcess, error) {
	port, err := stack.FreePort()
	if err != nil {
		return nil, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	r := &relayProcess{
		cmd: exec.Command(program, "run"), url: "http://" + addr, logfile: filepath.Join(dir, "relay.log"),
		done: make(chan struct{}),
	}
	log, err := os.Create(r.logfile)
	if err != nil {
		return nil, fmt.Errorf("creating the relay's log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has a copy of its own
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.Env = environment(
		"DATABASE_URL="+p.databaseURL, "AMQP_URL="+p.amqpURL, "OUTBOX_SCHEMA="+p.outbox, "OUTBOX_EXCHANGE="+p.exchange,
		"OUTBOX_HTTP_ADDR="+addr, "OUTBOX_GRACE="+grace.String(), "OUTBOX_LOG_FORMAT=text",
	)
	r.cmd.SysProcAttr = attributes()

	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death of this thread is what PR_SET_PDEATHSIG tells the child of, prctl(2)
		defer runtime.UnlockOSThread()
		defer close(r.done)
		err := r.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = r.cmd.Wait()
		if !r.stopping.Load() {
			died(r.failure("has ended"))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s run: %w", program, err)
	}
	return r, nil
}

// environment is this process's without the relay's settings, and with those given. Settings go this way because anybody
// may read the arguments of a process, and URLs hold passwords.
func environment(settings ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(setting string) bool {
		return strings.HasPrefix(setting, "OUTBOX_") || strings.HasPrefix(setting, "DATABASE_URL=") || strings.HasPrefix(setting, "AMQP_URL=")
	})
	return append(env, settings...)
}

// awaitReady returns when it is connected everywhere, and hears.
func (r *relayProcess) awaitReady(ctx context.Context) error {
	deadline := time.Now().Add(readyTimeout)
	for {
		var state struct{ Listener string }
		ready, err := r.get(ctx, "/readyz")
		if err == nil {
			err = json.NewDecoder(ready.Body).Decode(&state)
			_ = ready.Body.Close()
			if err == nil && ready.StatusCode == http.StatusOK && state.Listener == "ok" {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return r.failure(fmt.Sprintf("is not ready after %s", readyTimeout))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop asks it to end, and waits for that.
func (r *relayProcess) stop() error {
	r.stopping.Store(true)
	select {
	case <-r.done:
		return nil // died has been told
	default:
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	select {
	case <-r.done:
	case <-time.After(stopTimeout):
		_ = r.cmd.Process.Kill()
		<-r.done
	}
	if !r.cmd.ProcessState.Success() {
		return r.failure("has not ended well")
	}
	return nil
}

// failure says what happened, and the end of the log.
func (r *relayProcess) failure(what string) error {
	state := ""
	if r.cmd.ProcessState != nil {
		state = ", " + r.cmd.ProcessState.String()
	}
	text, err := os.ReadFile(r.logfile)
	if err != nil {
		text = []byte(err.Error())
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("outbox-relay run %s%s; its log ends so:\n  relay | %s", what, state,
		strings.Join(lines[max(0, len(lines)-15):], "\n  relay | "))
}

// counters are the series of /metrics that the demo shows: name with labels, as it stands there, to value.
type counters map[string]int

func (r *relayProcess) counters(ctx context.Context) (counters, error) {
	response, err := r.get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("asking the relay for its metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	c := counters{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		series, text, _ := strings.Cut(lines.Text(), " ")
		if series != publishedTotal && !strings.HasPrefix(series, wakeupsTotal) {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the relay's metrics: %w", err)
		}
		c[series] = int(value)
	}
	return c, lines.Err()
}

func (r *relayProcess) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return response, err
}

const (
	publishedTotal = "outbox_published_total"
	wakeupsTotal   = "outbox_wakeups_total{"
)

func (c counters) published() int { return c[publishedTotal] }

// wakeups gives them by reason.
func (c counters) wakeups() map[string]int {
	by := map[string]int{}
	for series, n := range c {
		if labels, ok := strings.CutPrefix(series, wakeupsTotal); ok {
			by[strings.TrimSuffix(strings.TrimPrefix(labels, `reason="`), `"}`)] = n
		}
	}
	return by
}

func (c counters) allWakeups() int {
	sum := 0
	for _, n := range c.wakeups() {
		sum += n
	}
	return sum
}
