package integration_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

// noScan puts the fallback scan beyond the end of the test: what a wake-up loses stays lost.
const noScan = "--scan-interval=1h"

// process is a run of the relay's binary.
type process struct {
	tb       testing.TB
	cmd      *exec.Cmd
	log      output
	httpAddr string
	ended    chan struct{} // closed when it has ended and log is complete
}

// relay starts `outbox-relay run` on the outbox. It is killed with the test.
func (o *outbox) relay(flags ...string) *process {
	o.tb.Helper()
	port, err := stack.FreePort()
	if err != nil {
		o.tb.Fatal(err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	p := o.start(append(append([]string{"run"}, o.flags()...),
		append([]string{"--http-addr=" + addr, "--log-level=debug", "--log-format=json"}, flags...)...)...)
	p.httpAddr = addr
	return p
}

// via is the same outbox, with other ways to the servers for the relays that it starts.
func (o *outbox) via(databaseURL, amqpURL string) *outbox {
	other := *o
	other.databaseURL, other.amqpURL = databaseURL, amqpURL
	return &other
}

// flags lead to the test's servers.
func (o *outbox) flags() []string {
	return []string{"--database-url=" + o.databaseURL, "--amqp-url=" + o.amqpURL, "--schema=" + o.schema, "--exchange=" + o.exchange}
}

// start runs the binary with these arguments and none of the test's environment.
func (o *outbox) start(args ...string) *process {
	o.tb.Helper()
	p := &process{tb: o.tb, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Env = []string{"HOME=" + o.tb.TempDir(), "GORACE=atexit_sleep_ms=0"} // else the race detector delays the exit
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		o.tb.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // exitCode tells
	}()
	o.tb.Cleanup(func() {
		p.kill()
		if strings.Contains(p.log.String(), "WARNING: DATA RACE") {
			o.tb.Error("the race detector found something in the relay")
		}
		if o.tb.Failed() {
			o.tb.Logf("the relay with pid %d said at last:\n%s", p.cmd.Process.Pid, p.log.tail(60))
			all := filepath.Join(o.tb.ArtifactDir(), fmt.Sprintf("relay-%d.log", p.cmd.Process.Pid)) // kept by go test -artifacts
			if err := os.WriteFile(all, []byte(p.log.String()), 0o600); err != nil {
				o.tb.Error(err)
			}
		}
	})
	return p
}

// ready waits until it can publish and, if it listens, hears.
func (p *process) ready() *process {
	p.tb.Helper()
	eventually(p.tb, patience, "the relay ready", func() bool {
		p.alive()
		status, body := p.get("/readyz")
		return status == http.StatusOK && !strings.Contains(body, `"listener":"not`)
	})
	return p
}

// asleep waits until it counts as asleep, so that writers ring.
func (p *process) asleep(o *outbox) *process {
	p.tb.Helper()
	p.ready()
	eventually(p.tb, patience, "the relay asleep", func() bool {
		p.alive()
		return o.count(`select count(*) from pg_locks join pg_stat_activity using (pid)
			where locktype = 'advisory' and granted and application_name like $1`, fmt.Sprintf("outbox-relay %%/%d", p.cmd.Process.Pid)) > 0
	})
	return p
}

func (p *process) alive() {
	p.tb.Helper()
	select {
	case <-p.ended:
		p.tb.Fatalf("the relay has ended with exit code %d", p.cmd.ProcessState.ExitCode())
	default:
	}
}

// get asks the relay's HTTP server; status 0: no answer.
func (p *process) get(path string) (status int, body string) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + p.httpAddr + path)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

// metric gives the value of a series, named as /metrics shows it with its labels.
func (p *process) metric(series string) float64 {
	p.tb.Helper()
	_, body := p.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				p.tb.Fatal(err)
			}
			return n
		}
	}
	p.tb.Fatalf("no series %s in:\n%s", series, body)
	return 0
}

func (p *process) signal(s os.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.tb.Fatal(err)
	}
}

// kill ends it with SIGKILL.
func (p *process) kill() {
	p.tb.Helper()
	p.signal(os.Kill)
	<-p.ended
}

// stop ends it with SIGTERM, as an orchestrator does, and wants exit code 0.
func (p *process) stop() {
	p.tb.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != 0 {
		p.tb.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// exitCode waits for the end.
func (p *process) exitCode() int {
	p.tb.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.tb.Fatal("the relay does not end")
		return -1
	}
}

// run starts the binary and gives its exit code and output.
func (o *outbox) run(args ...string) (int, string) {
	o.tb.Helper()
	p := o.start(args...)
	code := p.exitCode()
	return code, p.log.String()
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// tail gives the last lines above debug level.
func (o *output) tail(n int) string {
	var lines []string
	scan := bufio.NewScanner(strings.NewReader(o.String()))
	for scan.Scan() {
		if !strings.Contains(scan.Text(), `"level":"DEBUG"`) {
			lines = append(lines, scan.Text())
		}
	}
	if skipped := len(lines) - n; skipped > 0 {
		lines = append([]string{fmt.Sprintf("(%d lines)", skipped)}, lines[skipped:]...)
	}
	return strings.Join(lines, "\n")
}
