package demo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/demo"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// program is the path of outbox-relay.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "outbox-demo-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "outbox-relay")
	if out, err := exec.Command("go", "build", "-o", program, "..").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the relay: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// screen keeps what is shown, and calls onRow, once, with what was shown before the first row of figures.
type screen struct {
	mu    sync.Mutex
	text  bytes.Buffer
	onRow func(shown string)
}

var firstRow = regexp.MustCompile(`(?m)^ +\d+ s `)

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onRow != nil && firstRow.Match(p) {
		s.onRow(s.text.String())
		s.onRow = nil
	}
	return s.text.Write(p)
}

// show runs the demo on the shared servers, and sees to it that nothing of it is left.
func show(t *testing.T, ctx context.Context, duration time.Duration, onRow func(shown string)) (string, error) { //nolint:revive // t first
	t.Helper()
	databaseURL, amqpURL := stacktest.Postgres(t), stacktest.AMQP(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	s := &screen{onRow: onRow}
	err := demo.Run(ctx, demo.Options{
		Program: program, DatabaseURL: databaseURL, AMQPURL: amqpURL, Duration: duration, Out: s,
	})
	shown := s.text.String()
	t.Log(shown)

	if files, _ := filepath.Glob(tmp + "/*"); len(files) > 0 {
		t.Errorf("files are left: %s", files)
	}
	pid, _ := strconv.Atoi(find(t, shown, `process (\d+)`))
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the relay, process %d, is left: %v", pid, err)
	}
	conn, errConn := pgx.Connect(context.Background(), databaseURL)
	if errConn != nil {
		t.Fatal(errConn)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var schemas int
	if err := conn.QueryRow(context.Background(), "select count(*) from pg_namespace where nspname like '%outbox%'").Scan(&schemas); err != nil || schemas > 0 {
		t.Errorf("%d schemas are left, %v", schemas, err)
	}
	broker, errBroker := amqp.Dial(amqpURL)
	if errBroker != nil {
		t.Fatal(errBroker)
	}
	defer func() { _ = broker.Close() }()
	for name, declare := range map[string]func(*amqp.Channel, string) error{
		"exchange": func(ch *amqp.Channel, own string) error {
			return ch.ExchangeDeclarePassive(own, amqp.ExchangeTopic, true, false, false, false, nil)
		},
		"queue": func(ch *amqp.Channel, own string) error {
			_, err := ch.QueueDeclarePassive(own+".orders", true, false, true, false, nil)
			return err
		},
	} {
		ch, err := broker.Channel()
		if err != nil {
			t.Fatal(err)
		}
		var refusal *amqp.Error
		if err := declare(ch, find(t, shown, `exchange (outbox_demo_\w+)`)); !errors.As(err, &refusal) || refusal.Code != amqp.NotFound {
			t.Errorf("the %s is left: %v", name, err)
		}
	}
	return shown, err
}

func find(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing is shown like %s", pattern)
	}
	return found[1]
}

func TestDemo(t *testing.T) {
	shown, err := show(t, t.Context(), 3*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	figure := func(name string) int {
		n, _ := strconv.Atoi(strings.ReplaceAll(find(t, shown, `(?m)^  `+name+` +([\d,]+) `), ",", ""))
		return n
	}
	committed := figure("committed")
	if committed < 10 || figure("published") != committed || figure("consumed") != committed {
		t.Errorf("%d events committed, %d published, %d consumed", committed, figure("published"), figure("consumed"))
	}
	if figure("rolled back") == 0 || figure("duplicates") != 0 || figure("notify") == 0 {
		t.Errorf("%d rolled back, %d duplicates, %d notifications", figure("rolled back"), figure("duplicates"), figure("notify"))
	}
	if !strings.Contains(shown, "Nothing missing, nothing invented") {
		t.Error("the verdict is not shown")
	}
}

func TestAskedToStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	shown, err := show(t, ctx, time.Minute, func(string) { stop() })
	if err != nil || !strings.Contains(shown, "Asked to stop") {
		t.Error(err)
	}
}

func TestRelayDies(t *testing.T) {
	_, err := show(t, t.Context(), time.Minute, func(shown string) {
		pid, _ := strconv.Atoi(find(t, shown, `process (\d+)`))
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "signal: killed; its log ends so:") {
		t.Errorf("the error is: %v", err)
	}
}
