package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	classic = "classic"
	quorum  = "quorum"
)

// place is an empty database, and an exchange with one queue bound to all of it, for one measurement. Its connections
// belong to the goroutine that measures.
type place struct {
	bench       *bench
	name        string // of the database, the exchange and the queue
	databaseURL string
	amqpURL     string
	db          *pgx.Conn
	broker      *amqp.Connection
}

// at calls measure with a place of its own, and removes it afterwards.
func (b *bench) at(ctx context.Context, queueType string, measure func(*place) error) (err error) {
	b.places++
	p := &place{bench: b, name: "bench_" + strconv.Itoa(b.places), amqpURL: b.stack.AMQPURL}
	admin, err := pgx.Connect(ctx, b.stack.DatabaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }()
	if _, err := admin.Exec(ctx, "create database "+p.name); err != nil {
		return err
	}
	defer func() {
		_, dropErr := admin.Exec(context.WithoutCancel(ctx), "drop database "+p.name+" with (force)")
		err = errors.Join(err, dropErr)
	}()
	u, err := url.Parse(b.stack.DatabaseURL)
	if err != nil {
		return err
	}
	u.Path = "/" + p.name
	p.databaseURL = u.String()
	if p.db, err = pgx.Connect(ctx, p.databaseURL); err != nil {
		return err
	}
	defer func() { _ = p.db.Close(context.WithoutCancel(ctx)) }()

	if p.broker, err = amqp.Dial(b.stack.AMQPURL); err != nil {
		return err
	}
	defer func() { _ = p.broker.Close() }()
	ch, err := p.broker.Channel()
	if err != nil {
		return err
	}
	if err := p.declare(ch, queueType); err != nil {
		return fmt.Errorf("declaring exchange and queue: %w", err)
	}
	defer func() {
		_, deleteErr := ch.QueueDelete(p.name, false, false, false)
		err = errors.Join(err, deleteErr, ch.ExchangeDelete(p.name, false, false))
	}()
	return measure(p)
}

func (p *place) declare(ch *amqp.Channel, queueType string) error {
	if err := ch.ExchangeDeclare(p.name, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(p.name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: queueType}); err != nil {
		return err
	}
	return ch.QueueBind(p.name, "#", p.name, false, nil)
}

// settle lets the disk come to rest, so that what went before is not paid for by what is measured next.
func (p *place) settle(ctx context.Context) error {
	_, err := p.db.Exec(ctx, "checkpoint")
	return err
}
