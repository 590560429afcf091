package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// With actAs set this test program is not a test: it ends as signals want it to, or is outbox-relay.
const actAs = "OUTBOX_TEST_ACT_AS"

func TestMain(m *testing.M) {
	switch os.Getenv(actAs) {
	case "busy":
		ctx, _ := untilSignal(context.Background(), os.Stderr)
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("stopping:", context.Cause(ctx))
		select {}
	case "outbox-relay":
		main()
	}
	os.Exit(m.Run())
}

// outboxRelay runs a command line in this process.
func outboxRelay(t *testing.T, env map[string]string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	lookupEnv := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
	var out, errs bytes.Buffer
	code = run(t.Context(), args, lookupEnv, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"--help", 0, "Usage: outbox-relay <command>", ""},
		{"run --help", 0, "--scan-interval=DURATION", ""},
		{"run --help", 0, "(default 5s, $OUTBOX_SCAN_INTERVAL)", ""},
		{"enqueue --help", 0, "--aggregate-type=TYPE", ""},
		{"version", 0, "outbox-relay ", ""},
		{"version --output=json", 0, `"version":`, ""},
		{"migrate --print --schema=shop", 0, `create table "shop".events`, ""},
		{"", 2, "", "expected one of"},
		{"fly", 2, "", "unexpected argument fly"},
		{"run --scan-intervall=5s", 2, "", `did you mean "--scan-interval"?`},
		{"version --schema=x", 2, "", "unknown flag --schema"},
		{"run postgres://me:s3cr3t@db", 2, "", "***@db"},
		{"run --lease=1 --batch-size=0", 2, "", "--batch-size (OUTBOX_BATCH_SIZE) is 0, on the command line: must be 1 to 10000"},
		{"enqueue --aggregate-type=a", 2, "", "missing flags: --aggregate-id=ID, --event-type=TYPE"},
	} {
		code, stdout, stderr := outboxRelay(t, nil, "", strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) {
			t.Errorf("outbox-relay %s: exit code %d\n%s%s", test.args, code, stdout, stderr)
		}
		if (stderr == "") != (code == 0) || strings.Contains(stderr, "s3cr3t") {
			t.Errorf("outbox-relay %s: %s", test.args, stderr)
		}
	}
}

func TestMigrateEnqueueStatus(t *testing.T) {
	env := map[string]string{"DATABASE_URL": stacktest.Postgres(t), "OUTBOX_SCHEMA": `sh"op`}
	event := func(args ...string) []string {
		return append([]string{"enqueue", "--aggregate-type=order", "--aggregate-id=42"}, args...)
	}
	created := func(args ...string) []string { return append(event("--event-type=order.created"), args...) }

	for _, args := range [][]string{{"status"}, created("--payload={}")} {
		code, _, stderr := outboxRelay(t, env, "", args...)
		if code != 1 || !strings.Contains(stderr, "outbox-relay migrate") {
			t.Errorf("%s without a schema: exit code %d, %s", args[0], code, stderr)
		}
	}
	for _, want := range []string{"applying version 1", "is up to date"} {
		code, stdout, stderr := outboxRelay(t, env, "", "migrate")
		if code != 0 || !strings.Contains(stdout, want) {
			t.Fatalf("migrate: exit code %d, %s%s", code, stdout, stderr)
		}
	}

	code, stdout, stderr := outboxRelay(t, env, "{\"b\": 1, \"a\": 2}\n", created(
		"--header=traceparent=00-a;b=c-d-01", "--header=x=y", "--exchange=", "--routing-key=q", "--delay=1h", "--content-type=text/x")...)
	id, err := uuid.Parse(strings.TrimSpace(stdout))
	if code != 0 || err != nil || id.Version() != 7 {
		t.Fatalf("enqueue: exit code %d, %s%s", code, stdout, stderr)
	}
	conn, err := pgx.Connect(t.Context(), env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var row string
	err = conn.QueryRow(t.Context(), `select concat_ws('|', aggregate_type, aggregate_id, event_type, payload, headers, '"'||exchange||'"',
		routing_key, content_type, available_at - created_at) from "sh""op".events where id = $1`, id).Scan(&row)
	want := `order|42|order.created|{"b": 1, "a": 2}|{"x": "y", "traceparent": "00-a;b=c-d-01"}|""|q|text/x|01:00:00`
	if err != nil || row != want {
		t.Errorf("got  %s, %v\nwant %s", row, err, want)
	}

	given := uuid.NewString()
	code, stdout, stderr = outboxRelay(t, env, "", created("--payload=[]", "--id="+given, "--output=json")...)
	if code != 0 || stdout != `{"id":"`+given+"\"}\n" {
		t.Errorf("enqueue: exit code %d, %s%s", code, stdout, stderr)
	}
	long := strings.Repeat("é", 128)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{created("--payload=[]", "--id="+given), 1, "an event with the id " + given + " is in the outbox already"},
		{event("--payload=[]", "--event-type="), 1, "--event-type must not be empty"},
		{event("--payload=[]", "--event-type="+long), 1, "--event-type must have at most 255 bytes"},
		{created("--payload=[]", "--routing-key="+long), 1, "--routing-key must have at most 255 bytes"},
		{created("--payload=[]", "--content-type=\xff"), 1, "PostgreSQL refuses the text"},
		{created("--payload={", "--id=1", "--delay=-1s"), 2, "--payload is \"{\", on the command line: is not JSON"},
		{created("--payload=[]", "--header=nonsense"), 2, "nonsense"},
		{created(), 1, "the payload on standard input is not JSON"},
	} {
		code, _, stderr := outboxRelay(t, env, "", test.args...)
		if code != test.code || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit code %d, %s", test.args, code, stderr)
		}
	}

	code, stdout, stderr = outboxRelay(t, env, "", "status")
	for _, want := range []string{
		"PENDING     2 ", "DEAD        0 ", "next retry or scheduled event:        in 59m", "no relay is connected",
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status: exit code %d, no %q in\n%s%s", code, want, stdout, stderr)
		}
	}
	_, stdout, _ = outboxRelay(t, env, "", "status", "--output=json")
	var status struct {
		Events map[string]int
		Relays []any
	}
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || status.Events["PENDING"] != 2 || status.Relays == nil {
		t.Errorf("status as JSON: %v\n%s", err, stdout)
	}
}

func TestDatabaseDown(t *testing.T) {
	env := map[string]string{"DATABASE_URL": "postgres://me:s3cr3t@127.0.0.1:1/shop"}
	code, _, stderr := outboxRelay(t, env, "", "status")
	if code != 1 || strings.Contains(stderr, "s3cr3t") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	for _, want := range []string{"127.0.0.1:1", `"shop"`, `"me"`, "DATABASE_URL", "connection refused"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in %s", want, stderr)
		}
	}
}

// process is this program as another process, which the test's end kills.
func process(t *testing.T, as string, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), actAs+"="+as)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

func expect(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	line, err := r.ReadString('\n')
	if !strings.Contains(line, want) {
		t.Fatalf("got %q, want %q: %v", line, want, err)
	}
}

func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	cmd, stderr := process(t, "busy")
	pipe, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	stdout := bufio.NewReader(pipe)
	expect(t, stdout, "ready")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	expect(t, stdout, "stopping: received signal terminated")

	// Again and again: it is the same signal for a moment, and then the second.
	ended := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				_ = cmd.Process.Signal(syscall.SIGINT)
			}
		}
	})
	begin := time.Now()
	code := exitCode(t, cmd)
	close(ended)
	sender.Wait()
	if code != 1 || stderr.String() != "outbox-relay: interrupt again, ending at once\n" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if d := time.Since(begin); d < sameSignal/2 || d > time.Second {
		t.Errorf("it took %s", d)
	}
}

func TestSignalEndsAWaitForStandardInput(t *testing.T) {
	cmd, stderr := process(t, "outbox-relay", "enqueue", "--aggregate-type=a", "--aggregate-id=1", "--event-type=e")
	stdin, err := cmd.StdinPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds: it is all written only once the command reads.
	if _, err := io.WriteString(stdin, strings.Repeat(" ", 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if code := exitCode(t, cmd); code != 1 || !strings.Contains(stderr.String(), "received signal interrupt") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
