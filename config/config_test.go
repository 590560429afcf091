package config

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// parse reads settings as the binary does, but never from the test's own environment.
func parse(tb testing.TB, env map[string]string, args ...string) (*Settings, error) {
	tb.Helper()
	var s Settings
	l := NewLoader(func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	})
	parser, err := l.Parser(&s, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))
	if err != nil {
		tb.Fatal(err)
	}
	_, err = parser.Parse(args)
	return &s, errors.Join(err, l.Err())
}

func writeFile(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "outbox.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// These names are a contract with everybody who has written them down somewhere.
func TestNamesAndDefaults(t *testing.T) {
	want := [][3]string{
		{"config", "OUTBOX_CONFIG", ""},
		{"log-level", "OUTBOX_LOG_LEVEL", "info"},
		{"log-format", "OUTBOX_LOG_FORMAT", "auto"},
		{"database-url", "DATABASE_URL", ""},
		{"schema", "OUTBOX_SCHEMA", "outbox"},
		{"amqp-url", "AMQP_URL", "amqp://guest:guest@localhost:5672/"},
		{"amqp-ca-file", "OUTBOX_AMQP_CA_FILE", ""},
		{"amqp-cert-file", "OUTBOX_AMQP_CERT_FILE", ""},
		{"amqp-key-file", "OUTBOX_AMQP_KEY_FILE", ""},
		{"exchange", "OUTBOX_EXCHANGE", "outbox"},
		{"exchange-type", "OUTBOX_EXCHANGE_TYPE", "topic"},
		{"routing-key", "OUTBOX_ROUTING_KEY", "{{.EventType}}"},
		{"unroutable", "OUTBOX_UNROUTABLE", "retry"},
		{"listen-url", "OUTBOX_LISTEN_URL", ""},
		{"wake", "OUTBOX_WAKE", "notify"},
		{"scan-interval", "OUTBOX_SCAN_INTERVAL", "5s"},
		{"batch-size", "OUTBOX_BATCH_SIZE", "500"},
		{"lease", "OUTBOX_LEASE", "1m"},
		{"max-attempts", "OUTBOX_MAX_ATTEMPTS", "20"},
		{"backoff-base", "OUTBOX_BACKOFF_BASE", "1s"},
		{"backoff-max", "OUTBOX_BACKOFF_MAX", "17m"},
		{"confirm-timeout", "OUTBOX_CONFIRM_TIMEOUT", "30s"},
		{"retention", "OUTBOX_RETENTION", "72h"},
		{"grace", "OUTBOX_GRACE", "20s"},
		{"http-addr", "OUTBOX_HTTP_ADDR", "127.0.0.1:9180"},
	}
	var got [][3]string
	for _, flag := range kong.Must(&Settings{}).Model.Flags {
		if flag.Name != "help" {
			got = append(got, [3]string{flag.Name, strings.Join(flag.Envs, " "), flag.Default})
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := parse(t, nil); err != nil {
		t.Errorf("the defaults are wrong: %v", err)
	}
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, "scan-interval: 4s\nschema: from_file\nexchange-type: ''\n"+
		"amqp-url: [amqp://a, 'amqps://u:p,w@b']\nbatch-size: 7\nretention: 0\nhttp-addr: ':1'\n")
	env := map[string]string{
		"OUTBOX_SCAN_INTERVAL": "3s", "OUTBOX_SCHEMA": "from_env", "OUTBOX_LEASE": "5m", "OUTBOX_CONFIG": file, "OUTBOX_HTTP_ADDR": "",
	}
	// Neither kong nor anything else may look into the process's environment: lookupEnv has the word.
	t.Setenv("OUTBOX_BATCH_SIZE", "wrong")

	s, err := parse(t, env, "--scan-interval=2s")
	if err != nil {
		t.Fatal(err)
	}
	if s.ScanInterval != 2*time.Second {
		t.Errorf("the command line should win: %v", s.ScanInterval)
	}
	if s.Schema != "from_env" || s.Lease != 5*time.Minute {
		t.Errorf("the environment should win over the file: %v, %v", s.Schema, s.Lease)
	}
	if s.HTTPAddr != "" {
		t.Errorf("an empty variable is a value: %q", s.HTTPAddr)
	}
	if s.BatchSize != 7 || s.ExchangeType != "" || s.Retention != 0 {
		t.Errorf("the file should win over the default: %v, %q, %v", s.BatchSize, s.ExchangeType, s.Retention)
	}
	if want := []string{"amqp://a", "amqps://u:p,w@b"}; !slices.Equal(s.AMQPURLs, want) {
		t.Errorf("a list in the file: %q", s.AMQPURLs)
	}
	if s.MaxAttempts != 20 {
		t.Errorf("the default: %v", s.MaxAttempts)
	}

	env["OUTBOX_CONFIG"] = "/nowhere"
	if s, err = parse(t, env, "--config", file); err != nil || s.BatchSize != 7 {
		t.Errorf("--config should win over OUTBOX_CONFIG: %v", err)
	}
	if _, err = parse(t, map[string]string{"OUTBOX_LEASE": "wrong"}, "--lease=2m"); err != nil {
		t.Errorf("a wrong value that another overrides does not matter: %v", err)
	}
}

func TestURLLists(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"amqp://a", []string{"amqp://a"}},
		{"amqp://a,amqps://b", []string{"amqp://a", "amqps://b"}},
		{" amqp://a , amqps://b , ", []string{"amqp://a", "amqps://b"}},
		{"amqp://u:p,w@a:5672/v,amqp://u:,@b:1", []string{"amqp://u:p,w@a:5672/v", "amqp://u:,@b:1"}},
	} {
		s, err := parse(t, map[string]string{"AMQP_URL": test.text})
		if err != nil || !slices.Equal(s.AMQPURLs, test.want) {
			t.Errorf("%q: %q, %v", test.text, s.AMQPURLs, err)
		}
	}
	s, err := parse(t, nil, "--amqp-url=amqp://a", "--amqp-url=amqp://b,amqp://c")
	if want := []string{"amqp://a", "amqp://b", "amqp://c"}; err != nil || !slices.Equal(s.AMQPURLs, want) {
		t.Errorf("repeated flag: %q, %v", s.AMQPURLs, err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	file := writeFile(t, "lease: 10s\nscan_interval: 5s\nwake: sometimes\n\nbatch-size: 20k\nwake: none\n")
	env := map[string]string{
		"OUTBOX_CONFIG":    file,
		"DATABASE_URL":     "postgres://me:s3cr3t/x@db/shop",
		"AMQP_URL":         "amqp://me:s3cr3t@one,amqp://me:s3c?r3t@two",
		"OUTBOX_RETENTION": "3 days",
	}
	_, err := parse(t, env, "--schema=pg_outbox", "--backoff-base=1h", "--http-addr=9180", "--log-level=loud")
	want := []string{
		file + `, line 2: there is no setting "scan_interval"; write scan-interval`,
		file + `, line 6: "wake" stands twice, first in line 3`,
		`--batch-size (OUTBOX_BATCH_SIZE) is "20k", in ` + file + `, line 5: write a whole number, such as 20`,
		`--retention (OUTBOX_RETENTION) is "3 days", in the environment: write a number and a unit, such as 500ms, 5s or 72h`,
		`--log-level (OUTBOX_LOG_LEVEL) is "loud", on the command line: must be debug, info, warn or error`,
		`--database-url (DATABASE_URL) is "postgres://me:***@db/shop", in the environment: has an @ after the host; ` + percentEncode,
		`--schema (OUTBOX_SCHEMA) is "pg_outbox", on the command line: must not begin with pg_, which PostgreSQL keeps for itself`,
		`--amqp-url (AMQP_URL) is "amqp://me:***@two", in the environment: is not a URL such as ` +
			`amqp://user:password@host:5672/vhost; ` + percentEncode,
		`--wake (OUTBOX_WAKE) is "sometimes", in ` + file + `, line 3: must be notify or none`,
		`--lease (OUTBOX_LEASE) is 10s, in ` + file + `, line 1: must be longer than --confirm-timeout (OUTBOX_CONFIRM_TIMEOUT), ` +
			`which is 30s, by default: else another relay takes over events that RabbitMQ may still confirm`,
		`--backoff-max (OUTBOX_BACKOFF_MAX) is 17m0s, by default: must not be shorter than --backoff-base ` +
			`(OUTBOX_BACKOFF_BASE), which is 1h0m0s, on the command line`,
		`--http-addr (OUTBOX_HTTP_ADDR) is "9180", on the command line: must be host:port, such as 127.0.0.1:9180 or :9180, or empty`,
	}
	got := strings.Split(err.Error(), "\n")
	for i := range max(len(got), len(want)) {
		g, w := slices.Concat(got, make([]string, len(want)))[i], slices.Concat(want, make([]string, len(got)))[i]
		if g != w {
			t.Errorf("line %d\ngot  %s\nwant %s", i+1, g, w)
		}
	}
}

func TestChecks(t *testing.T) {
	empty := writeFile(t, "")
	for _, test := range []struct{ args, want string }{
		{"--schema=", "1 to 63 bytes, not 0"},
		{"--schema=" + strings.Repeat("é", 32), "1 to 63 bytes, not 64"},
		{"--schema=a\x00b", "zero byte"},
		{"--schema=a\xffb", "UTF-8"},
		{"--database-url=mysql://u:p@h/db", "must begin with postgres://"},
		{"--database-url=postgres://u:p@h/db?sslmode=maybe", "sslmode is invalid"},
		{"--database-url=postgres://u:p@h:port/db", "invalid port"},
		{"--database-url=postgres://u:p@h/db?sslrootcert=/nowhere&sslmode=verify-full", "/nowhere"},
		{"--database-url=nonsense", "keyword=value"},
		{"--listen-url=nonsense", "--listen-url (OUTBOX_LISTEN_URL)"},
		{"--amqp-url=", "at least one"},
		{"--amqp-url=http://h", "AMQP scheme must be"},
		{"--amqp-url=amqp://h,h2:5672", "each URL of the list must begin"},
		{"--amqp-url=amqp://h:70000", "port must be 1 to 65535"},
		{"--amqp-url=amqp://h:99999999999", "port must be 1 to 65535"},
		{"--amqp-url=amqp://h/?heartbeat=x", "heartbeat is not an uint16"},
		{"--amqp-url=amqp://u:12/34@h/", "@ after the host"},
		{"--exchange=" + strings.Repeat("x", 256), "at most 255 bytes"},
		{"--exchange-type=fancy", "must be direct, topic"},
		{"--exchange=", "--exchange-type (OUTBOX_EXCHANGE_TYPE) is \"topic\", by default: must be empty"},
		{"--routing-key={{.EventType", "not a Go template"},
		{"--routing-key={{.Type}}", "has only EventType, AggregateType"},
		{"--unroutable=drop", "must be retry, dead or accept"},
		{"--wake=poll", "must be notify or none"},
		{"--scan-interval=9ms", "must be at least 10ms"},
		{"--batch-size=0", "must be 1 to 10000"},
		{"--batch-size=10001", "must be 1 to 10000"},
		{"--max-attempts=0", "must be 1 to 2147483647"},
		{"--max-attempts=2147483648", "must be 1 to 2147483647"},
		{"--confirm-timeout=0", "must be at least 1ms"},
		{"--confirm-timeout=1m", "must be longer than --confirm-timeout"},
		{"--backoff-base=0", "must be at least 1ms"},
		{"--retention=-1s", "must be at least 0s"},
		{"--grace=-1s", "must be at least 0s"},
		{"--http-addr=localhost:http", "must be host:port"},
		{"--log-format=xml", "must be auto, text or json"},
		{"--amqp-ca-file=/nowhere --amqp-url=amqps://h", "no such file"},
		{"--amqp-ca-file=" + empty + " --amqp-url=amqps://h", "no certificate in PEM form"},
		{"--amqp-ca-file=" + empty, "no URL is amqps://"},
		{"--amqp-cert-file=x --amqp-url=amqps://h", "--amqp-key-file (OUTBOX_AMQP_KEY_FILE) is \"\", by default: must be set too"},
		{"--amqp-key-file=x --amqp-url=amqps://h", "--amqp-cert-file (OUTBOX_AMQP_CERT_FILE) is \"\", by default: must be set too"},
		{"--amqp-cert-file=/c --amqp-key-file=/k --amqp-url=amqps://h", "does not go with"},
		{"--config=/nowhere", "no such file"},
	} {
		_, err := parse(t, nil, strings.Split(test.args, " ")...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.args, err, test.want)
		}
	}
	for _, args := range [][]string{
		{"--schema=Ünï\"x"},
		{"--exchange=", "--exchange-type="},
		{"--exchange-type=x-consistent-hash"},
		{"--http-addr=[::1]:0"},
		{"--routing-key=shop.{{.AggregateType}}.{{.AggregateID}}.{{.ID}}.{{.Sequence}}"},
		{"--routing-key=plain"},
		{"--retention=0"},
		{"--database-url=host=h,h2 password='a b' dbname=x pool_max_conns=8"},
		{"--database-url=postgres://u:p%40@h1,h2:5433/db"},
		{"--config=" + empty},
	} {
		if _, err := parse(t, nil, args...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	t.Setenv("PGPORT", "x")
	if _, err := parse(t, nil); err == nil || !strings.Contains(err.Error(), "libpq's PG* variables are used, and they are wrong") {
		t.Errorf("wrong PG* variables: %v", err)
	}
}

func TestFileProblems(t *testing.T) {
	for text, want := range map[string]string{
		"password: x":                   `line 1: there is no setting "password"`,
		"config: x":                     `line 1: there is no setting "config"`,
		"help: x":                       `line 1: there is no setting "help"`,
		"a: 1\nlease:\n":                `line 2: --lease (OUTBOX_LEASE) has no value`,
		"lease: [1m]":                   `takes a single value`,
		"lease: {a: b}":                 `takes a single value`,
		"amqp-url: [[amqp://a]]":        `takes a single value`,
		"- lease: 1m":                   `line 1: settings are written one a line`,
		"lease":                         `settings are written one a line`,
		"lease: 1m\n---\nlease: 2m\n":   `more than one YAML document`,
		"lease: 1m\n bad: indent\n":     `is not YAML: line 2`,
		"x: &a [*a]":                    `there is no setting "x"`,
		"lease: 5":                      `--lease (OUTBOX_LEASE) is "5", in `,
		"postgres://me:s3cr3t@db: oops": `there is no setting "postgres://me:***@db"`,
	} {
		path := writeFile(t, text)
		_, err := parse(t, nil, "--config", path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "schema: &s x\nexchange: *s\n"} {
		if s, err := parse(t, nil, "--config", writeFile(t, text)); err != nil {
			t.Errorf("%q: %v, %+v", text, err, s)
		}
	}
}
