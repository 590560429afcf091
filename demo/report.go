package demo

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-relay/outbox-relay/config"
)

// report prints the show. It belongs to one goroutine.
type report struct {
	out     io.Writer
	wakeups int
}

func (r *report) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *report) title() {
	r.say("outbox-relay demo: an order and its message, both or neither\n")
}

func (r *report) starting(p place) {
	if !p.sharedDatabase || !p.sharedBroker {
		r.say("Starting throwaway servers, a few seconds ...")
	}
	if p.sharedDatabase {
		r.say("PostgreSQL is yours, of DATABASE_URL")
	}
	if p.sharedBroker {
		r.say("RabbitMQ is yours, of AMQP_URL")
	}
}

func (r *report) scene(p place, relay *relayProcess, c counters) {
	r.wakeups = c.allWakeups()
	r.say("outbox-relay run is up as process %d, %s/metrics", relay.cmd.Process.Pid, relay.url)
	r.say(`
  shop       one transaction, two inserts: the order, and the event that tells of it; one in %d is rolled back
             tables %s.orders and %s.events
  relay      claims events from the table, publishes them, marks those that RabbitMQ has confirmed
             exchange %s
  consumer   receives what the relay publishes
             queue %s, bound with order.#

            so far                               in the last second
            committed   published    consumed    wake-ups   p50, COMMIT sent to consumed`,
		rolledBackOneIn, p.shop, p.outbox, p.exchange, p.queue)
}

func (r *report) phase(p phase) { r.say("\n  %-8s  %s", p.name, p.text) }

func (r *report) row(elapsed time.Duration, t tally, c counters) {
	r.say("  %6d s  %9s   %9s   %9s    %8s   %10s", int(elapsed.Seconds()), number(t.committed), number(c.published()), number(t.consumed),
		number(c.allWakeups()-r.wakeups), milliseconds(percentile(t.latencies, 0.5)))
	r.wakeups = c.allWakeups()
}

func (r *report) summary(l *ledger, c counters, missing, invented []string) {
	t := l.tally()
	line := func(name string, n int, meaning string) { r.say("  %-13s %9s   %s", name, number(n), meaning) }
	r.say("\nWhat was seen\n")
	line("committed", t.committed, "orders, each with its event in the same transaction")
	line("rolled back", t.rolledBack, "of which nothing is left, neither order nor event")
	line("published", c.published(), "confirmed by RabbitMQ, then marked PUBLISHED")
	line("consumed", t.consumed, "different events")
	line("duplicates", t.duplicates, "which a crash may cause: the same event once more, under the same id")

	r.say("\n  from COMMIT sent to consumed\n                       p50          p99          max")
	for _, phase := range []string{calm, burst, ""} {
		name := phase
		if name == "" {
			name = "all"
		}
		took := l.latencies(phase)
		r.say("  %-10s %12s %12s %12s", name, milliseconds(percentile(took, 0.5)), milliseconds(percentile(took, 0.99)),
			milliseconds(percentile(took, 1)))
	}

	r.say("\n  what woke the relay")
	by := c.wakeups()
	for _, reason := range []struct{ name, meaning string }{
		{"notify", "a COMMIT rang the doorbell"},
		{"scan", "the fallback scan, which needs no bell"},
		{"due", "the time of a retry or of a scheduled event"},
		{"reconnect", "its LISTEN connection or its lock came or went: it looks, to miss nothing"},
	} {
		line(reason.name, by[reason.name], reason.meaning)
	}

	if len(missing)+len(invented) == 0 {
		r.say("\nNothing missing, nothing invented: the %s ids committed are the %s ids consumed.",
			number(t.committed), number(t.consumed))
	}
	r.list("MISSING, committed but not consumed", missing)
	r.list("INVENTED, consumed but not committed", invented)
}

func (r *report) list(title string, ids []string) {
	const limit = 20
	if len(ids) == 0 {
		return
	}
	r.say("\n%s: %s", title, number(len(ids)))
	for _, id := range ids[:min(limit, len(ids))] {
		r.say("  %s", id)
	}
	if len(ids) > limit {
		r.say("  and so on")
	}
}

// invitation shows no password: those of servers that exist already are the caller's.
func (r *report) invitation(p place, relay *relayProcess) {
	options := ""
	if p.outbox != "outbox" {
		options = " --schema " + p.outbox
	}
	r.say(`
All of it stays up until Ctrl-C, and what arrives is told here. For another terminal:

  export DATABASE_URL='%[1]s'
  export AMQP_URL='%[2]s'

  psql "$DATABASE_URL" -c "insert into %[3]s.events (aggregate_type, aggregate_id, event_type, payload)
                           values ('order', '7', 'order.paid', '{}')"
  %[4]s status%[5]s
  %[4]s enqueue%[5]s --aggregate-type order --aggregate-id 7 --event-type order.shipped --payload '{}'

The relay   %[6]s/metrics   /readyz   /healthz
`, config.Redact(p.databaseURL), redactUnlessOurs(p), p.outbox, os.Args[0], options, relay.url)
}

// redactUnlessOurs: a throwaway broker's guest account is nobody's secret.
func redactUnlessOurs(p place) string {
	if p.sharedBroker {
		return config.Redact(p.amqpURL)
	}
	return p.amqpURL
}

func (r *report) arrivals(all []stranger) {
	const limit = 5 // in one go
	for _, s := range all[:min(limit, len(all))] {
		r.say("%s  %s of %s has arrived, id %s", s.at.Format(time.TimeOnly), s.eventType, s.number, s.id)
	}
	if more := len(all) - limit; more > 0 {
		r.say("          and %s more", number(more))
	}
}

// percentile takes the nearest rank of sorted values; none give 0.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

func milliseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// number writes n with a comma at the thousands.
func number(n int) string {
	text := strconv.Itoa(n)
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}
