package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/outbox-relay/outbox-relay/config"
	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// StatusCommand tells how the outbox is.
type StatusCommand struct {
	Output

	config.File     `group:"General:"`
	config.Database `group:"PostgreSQL:"`
}

// meaning of each status, in the order of an event's life.
var meaning = []struct {
	status event.Status
	text   string
}{
	{event.Pending, "waits to be published"},
	{event.Publishing, "claimed by a relay"},
	{event.Published, "RabbitMQ has confirmed it"},
	{event.Failed, "will be tried again by itself"},
	{event.Dead, "will not be tried again until an operator redelivers it"},
}

// Run reads the status and prints it.
func (c *StatusCommand) Run(ctx context.Context, env *Env) error {
	conn, err := connect(ctx, &c.Database)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	st, err := scanner.ReadStatus(ctx, conn, c.Schema)
	if err != nil {
		return err
	}
	for _, m := range meaning {
		st.Events[m.status] += 0 // a status that no event has is 0, not absent
	}
	if c.json() {
		return json.NewEncoder(env.Stdout).Encode(st)
	}
	return printStatus(env.Stdout, c.Schema, st)
}

func printStatus(w io.Writer, schema string, st *scanner.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "outbox in schema %s, version %d\n\n", schema, st.SchemaVersion)
	known := map[event.Status]bool{}
	for _, m := range meaning {
		known[m.status] = true
		fmt.Fprintf(t, "%s\t%d\t%s\n", m.status, st.Events[m.status], m.text)
	}
	for _, s := range slices.Sorted(maps.Keys(st.Events)) {
		if !known[s] {
			fmt.Fprintf(t, "%s\t%d\tof a newer version than this program\n", s, st.Events[s])
		}
	}

	fmt.Fprintf(t, "\noldest event that could be sent now:\t%s\n", or(st.OldestPending, "none", func(age time.Duration) string {
		return age.String() + " old"
	}))
	fmt.Fprintf(t, "next retry or scheduled event:\t%s\n", or(st.NextDue, "none", func(due time.Duration) string {
		if due < 0 {
			return "due for " + (-due).String()
		}
		return "in " + due.String()
	}))

	if len(st.Relays) == 0 {
		fmt.Fprint(t, "\nno relay is connected\n")
	}
	for i, r := range st.Relays {
		if i == 0 {
			fmt.Fprint(t, "\nrelays connected:\n")
		}
		since := "?"
		if r.Since != nil {
			since = r.Since.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\tsince %s\t%d sessions\n", r.Name, since, r.Sessions)
	}
	return t.Flush()
}

// or formats seconds, or says what stands for none.
func or(seconds *float64, none string, format func(time.Duration) string) string {
	if seconds == nil {
		return none
	}
	return format(time.Duration(*seconds * float64(time.Second)).Round(time.Millisecond))
}
