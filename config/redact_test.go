package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"amqp://localhost:5672/":           "amqp://localhost:5672/",
		"amqp://u:p@h:5672/v":              "amqp://u:***@h:5672/v",
		"amqp://u:p/a?s@s#w@h":             "amqp://u:***@h",
		"amqp://u:%zz@h":                   "amqp://u:***@h",
		"amqp://u:p":                       "amqp://u:***",
		"amqp://[::1]:5672/v":              "amqp://[::1]:5672/v",
		"amqp:/u:p@h":                      "amqp:***@h",
		"u:p@h":                            "u:***@h",
		"postgres://u@h1:1,h2:2/db?x=y":    "postgres://u@h1:1,h2:2/db?x=y",
		"postgres://h/db?password=p&x=y":   "postgres://h/db?password=***",
		"postgres://h/db?pass%77ord=p":     "postgres://h/db?pass%77ord=***",
		"host=h password=p dbname=d":       "host=h password=***",
		"host=h Password = 'p q' dbname=d": "host=h Password =***",
		"host=h sslpassword=p":             "host=h sslpassword=***",
		"outbox":                           "outbox",
		"5s":                               "5s",
	} {
		if got := Redact(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

const secret = "Tr0ub4dor"

// A password shows nowhere, wherever the text around it goes wrong.
func FuzzPassword(f *testing.F) {
	f.Add("postgres://user:", "", "@host/db")
	f.Add("amqp://user:", "/?#@", "@host:port/%zz")
	f.Add("amqps://user:%", "%", "")
	f.Add("host=h password='", `\'`, "' x=y")
	f.Add("//:", "@", "")
	f.Add("postgres://h/db?password=", "&", "&sslmode=maybe")
	f.Fuzz(func(t *testing.T, before, within, after string) {
		// Before the password stands what tells it as one: a user and a colon, with an @ after it, or a key.
		isURL := strings.HasSuffix(before, ":") && strings.Contains(after, "@")
		if !isURL && !strings.HasSuffix(before, "password=") || strings.ContainsAny(before+within+after, "\x00") {
			t.Skip()
		}
		text := before + within + secret + after
		if got := Redact(text); strings.Contains(got, secret) {
			t.Errorf("Redact(%q) = %q", text, got)
		}
		env := map[string]string{"DATABASE_URL": text, "OUTBOX_LISTEN_URL": text, "AMQP_URL": text, "OUTBOX_SCHEMA": text}
		if _, err := parse(t, env, "--http-addr="+text); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// Whatever stands in the file, it is read or refused by name; a password in a value that is refused does not show.
func FuzzFile(f *testing.F) {
	f.Add([]byte("scan-interval: 5s\n"))
	f.Add([]byte("amqp-url: [amqp://a, &x amqp://b, *x]\nlease: {a: [b]}\n? [k]\n: v\n<<: *x\n"))
	f.Add([]byte("database-url: 'postgres://user:" + secret + "@host:x/db'\n"))
	f.Add([]byte("database-url: |\n  host=h password=" + secret + "\n---\n...\n"))
	f.Add([]byte("schema: !!binary aGVsbG8=\nbatch-size: 1_000\n\tlease: 1m"))
	path := filepath.Join(f.TempDir(), "outbox.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		read := func(text []byte) error {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := parse(t, nil, "--config="+path)
			return err
		}
		_ = read(text) // it may be right or wrong, but must not panic
		wrong := "listen-url: postgres://user:" + secret + "@host:x/db\n"
		err := read(append([]byte(wrong), text...))
		if err == nil {
			t.Error("a wrong URL is accepted")
		} else if !strings.Contains(string(text), secret) && strings.Contains(err.Error(), secret) {
			t.Error(err)
		}
	})
}
