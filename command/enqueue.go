package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/config"
)

// EnqueueCommand puts one event into the outbox.
type EnqueueCommand struct {
	AggregateType string            `name:"aggregate-type" required:"" placeholder:"TYPE" help:"Kind of the thing that the event is about, such as order."`
	AggregateID   string            `name:"aggregate-id" required:"" placeholder:"ID" help:"Which one it is."`
	EventType     string            `name:"event-type" required:"" placeholder:"TYPE" help:"What happened, such as order.created."`
	Payload       *string           `name:"payload" placeholder:"JSON" help:"The message's body; read from standard input if not given."`
	Header        map[string]string `name:"header" mapsep:"none" placeholder:"KEY=VALUE" help:"A header of the message; may be repeated."`
	RoutingKey    *string           `name:"routing-key" placeholder:"KEY" help:"If not given, it follows from the relay's --routing-key."`
	Exchange      *string           `name:"exchange" placeholder:"NAME" help:"If not given, the relay's; empty: straight to the queue that the routing key names."`
	Delay         time.Duration     `name:"delay" placeholder:"DURATION" help:"Publish it that much later, by the database's clock."`
	ID            string            `name:"id" placeholder:"UUID" help:"The event's id; if not given, a new one."`
	ContentType   *string           `name:"content-type" placeholder:"TYPE" help:"If not given, it follows from the payload's column type."`
	Output

	config.File     `group:"General:"`
	config.Database `group:"PostgreSQL:"`
}

// AfterApply checks what can be checked without the database.
func (c *EnqueueCommand) AfterApply(l *config.Loader) error {
	if c.Delay < 0 {
		l.Wrong("delay", c.Delay, "must not be negative")
	}
	if _, err := uuid.Parse(c.ID); c.ID != "" && err != nil {
		l.Wrong("id", c.ID, "must be a UUID")
	}
	if c.Payload != nil && !json.Valid([]byte(*c.Payload)) {
		l.Wrong("payload", *c.Payload, "is not JSON")
	}
	return nil
}

// Run inserts the event and prints its id.
func (c *EnqueueCommand) Run(ctx context.Context, env *Env) error {
	if c.Payload == nil {
		text, err := readAll(ctx, env.Stdin)
		if err != nil {
			return fmt.Errorf("reading the payload from standard input: %w", err)
		}
		if !json.Valid(text) {
			return errors.New("the payload on standard input is not JSON")
		}
		payload := strings.TrimSpace(string(text)) // echo adds a newline
		c.Payload = &payload
	}
	conn, err := connect(ctx, &c.Database)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	id, err := c.enqueue(ctx, conn)
	if err != nil {
		return c.explain(err)
	}
	if c.json() {
		return json.NewEncoder(env.Stdout).Encode(map[string]string{"id": id})
	}
	_, err = fmt.Fprintln(env.Stdout, id)
	return err
}

func (c *EnqueueCommand) enqueue(ctx context.Context, conn *pgx.Conn) (id string, err error) {
	var headers, eventID any // nil: null
	if len(c.Header) > 0 {
		text, err := json.Marshal(c.Header)
		if err != nil {
			return "", err
		}
		headers = string(text)
	}
	if c.ID != "" {
		eventID = c.ID
	}
	err = conn.QueryRow(ctx, "select "+pgx.Identifier{c.Schema, "enqueue"}.Sanitize()+`(
		aggregate_type => @aggregate_type::text, aggregate_id => @aggregate_id::text, event_type => @event_type::text,
		payload => @payload::text::json, headers => @headers::jsonb, routing_key => @routing_key::text,
		exchange => @exchange::text, id => @id::uuid, content_type => @content_type::text,
		available_at => case when @delay::float8 > 0 then now() + make_interval(secs => @delay::float8) end)::text`,
		pgx.NamedArgs{
			"aggregate_type": c.AggregateType, "aggregate_id": c.AggregateID, "event_type": c.EventType,
			"payload": *c.Payload, "headers": headers, "routing_key": c.RoutingKey, "exchange": c.Exchange, "id": eventID,
			"content_type": c.ContentType, "delay": c.Delay.Seconds(),
		}).Scan(&id)
	return id, err
}

// readAll gives up when ctx ends. A read from a terminal can't be interrupted, so its goroutine may then live on, for the
// moment until the process ends.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(r)
		read <- result{text, err}
	}()
	select {
	case got := <-read:
		return got.text, got.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// explain turns what PostgreSQL says into a sentence that names the flag. Codes are those of its Appendix A, constraints
// those of the migrations.
func (c *EnqueueCommand) explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return fmt.Errorf("enqueueing the event: %w", err)
	}
	column := strings.TrimPrefix(pg.ConstraintName, "events_")
	column, tooLong := strings.CutSuffix(column, "_fits_amqp")
	flag := "--" + strings.ReplaceAll(column, "_", "-")
	switch {
	case pg.Code == "23514" && flag == "--event-type" && c.EventType == "":
		return errors.New("--event-type must not be empty")
	case pg.Code == "23514" && tooLong: // check_violation
		return fmt.Errorf("%s must have at most 255 bytes: AMQP carries no more", flag)
	case pg.Code == "23505": // unique_violation
		return fmt.Errorf("an event with the id %s is in the outbox already", c.ID)
	case pg.Code == "3F000" || pg.Code == "42883": // invalid_schema_name, undefined_function
		return fmt.Errorf("schema %q has no outbox: run `outbox-relay migrate` (with the same --schema)", c.Schema)
	case pg.Code == "22P02" || pg.Code == "22P05" || pg.Code == "22021": // JSON or text that PostgreSQL can't take
		return fmt.Errorf("PostgreSQL refuses the text of the event: %s %s", pg.Message, pg.Detail)
	}
	return fmt.Errorf("enqueueing the event: %w", err)
}
