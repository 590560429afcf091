package config

import (
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// The AfterApply methods are kong's hook at the end of a parse: each group says what is wrong with it, and kong is always
// told that all is well, so that the next group can speak too.

// AfterApply checks the group.
func (g *Log) AfterApply(l *Loader) error {
	l.OneOf("log-level", g.LogLevel, "debug", "info", "warn", "error")
	l.OneOf("log-format", g.LogFormat, "auto", "text", "json")
	return nil
}

// AfterApply checks the group.
func (d *Database) AfterApply(l *Loader) error {
	l.checkDatabaseURL("database-url", d.DatabaseURL)
	switch s := d.Schema; {
	case s == "" || len(s) > 63: // NAMEDATALEN - 1
		l.Wrong("schema", s, fmt.Sprintf("must have 1 to 63 bytes, not %d", len(s)))
	case strings.ContainsRune(s, 0) || !utf8.ValidString(s):
		l.Wrong("schema", s, "must be UTF-8 without a zero byte")
	case strings.HasPrefix(s, "pg_"):
		l.Wrong("schema", s, "must not begin with pg_, which PostgreSQL keeps for itself")
	}
	return nil
}

// AfterApply checks the group.
func (b *Broker) AfterApply(l *Loader) error {
	l.checkAMQPURLs(b)
	l.checkTLS(b)
	if len(b.Exchange) > 255 {
		l.Wrong("exchange", b.Exchange, fmt.Sprintf("must have at most 255 bytes (AMQP), not %d", len(b.Exchange)))
	}
	switch t := b.ExchangeType; {
	case t == "" || strings.HasPrefix(t, "x-"):
	default:
		l.OneOf("exchange-type", t, "direct", "topic", "fanout", "headers", "x-...", "empty (not declared)")
	}
	if b.Exchange == "" && b.ExchangeType != "" {
		l.Wrong("exchange-type", b.ExchangeType, "must be empty when --exchange is: AMQP's default exchange can't be declared")
	}
	l.checkRoutingKey(b.RoutingKey)
	l.OneOf("unroutable", b.Unroutable, "retry", "dead", "accept")
	return nil
}

// checkRoutingKey looks for fields that an event has not, too, which a template tells only when it is executed. What else
// an execution may say can be the made-up event's fault.
func (l *Loader) checkRoutingKey(text string) {
	t, err := template.New("routing-key").Parse(text)
	if err != nil {
		l.Wrong("routing-key", text, fmt.Sprintf("is not a Go template: %v", err))
		return
	}
	err = t.Execute(io.Discard, struct {
		EventType, AggregateType, AggregateID, ID string
		Sequence                                  int64
	}{"order.created", "order", "42", uuid.Nil.String(), 1})
	if err != nil && strings.Contains(err.Error(), "can't evaluate field") {
		l.Wrong("routing-key", text, "an event has only EventType, AggregateType, AggregateID, ID and Sequence")
	}
}

// AfterApply checks the group.
func (r *Relay) AfterApply(l *Loader) error {
	if r.ListenURL != "" {
		l.checkDatabaseURL("listen-url", r.ListenURL)
	}
	l.OneOf("wake", r.Wake, "notify", "none")
	l.atLeast("scan-interval", r.ScanInterval, 10*time.Millisecond)
	l.between("batch-size", r.BatchSize, 1, 10_000)
	l.between("max-attempts", r.MaxAttempts, 1, math.MaxInt32) // the column is an int
	l.atLeast("confirm-timeout", r.ConfirmTimeout, time.Millisecond)
	l.atLeast("backoff-base", r.BackoffBase, time.Millisecond)
	l.atLeast("retention", r.Retention, 0)
	l.atLeast("grace", r.Grace, 0)
	if !l.wrong["confirm-timeout"] && r.Lease <= r.ConfirmTimeout {
		l.Wrong("lease", r.Lease, fmt.Sprintf("must be longer than %s, which is %s, %s: else another relay takes over events "+
			"that RabbitMQ may still confirm", l.name("confirm-timeout"), r.ConfirmTimeout, l.from("confirm-timeout")))
	}
	if !l.wrong["backoff-base"] && r.BackoffMax < r.BackoffBase {
		l.Wrong("backoff-max", r.BackoffMax, fmt.Sprintf("must not be shorter than %s, which is %s, %s",
			l.name("backoff-base"), r.BackoffBase, l.from("backoff-base")))
	}
	if r.HTTPAddr != "" {
		_, port, err := net.SplitHostPort(r.HTTPAddr)
		if _, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil {
			l.Wrong("http-addr", r.HTTPAddr, "must be host:port, such as 127.0.0.1:9180 or :9180, or empty")
		}
	}
	return nil
}

func (l *Loader) atLeast(flag string, value, least time.Duration) {
	if value < least {
		l.Wrong(flag, value, fmt.Sprintf("must be at least %s", least))
	}
}

func (l *Loader) between(flag string, value, least, most int) {
	if value < least || value > most {
		l.Wrong(flag, value, fmt.Sprintf("must be %d to %d", least, most))
	}
}
