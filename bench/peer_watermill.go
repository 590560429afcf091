package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	watermillmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watermillForwarder is Watermill's forwarder from its SQL subscriber to its AMQP publisher with confirms, which it
// publishes one by one. It polls every 10 ms instead of every second, its default, for latency's sake.
type watermillForwarder struct{}

const watermillTopic = "events"

func (watermillForwarder) name() string { return "Watermill forwarder" }

func (watermillForwarder) subscriber(pool *pgxpool.Pool) (*watermillsql.Subscriber, error) {
	return watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter:  watermillsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   10 * time.Millisecond,
	}, watermill.NopLogger{})
}

func (w watermillForwarder) prepare(ctx context.Context, p *place) error {
	pool, err := pgxpool.New(ctx, p.databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	subscriber, err := w.subscriber(pool)
	if err != nil {
		return err
	}
	return errors.Join(subscriber.SubscribeInitialize(watermillTopic), subscriber.Close())
}

func (watermillForwarder) publish(ctx context.Context, tx pgx.Tx, payloads ...[]byte) error {
	publisher, err := watermillsql.NewPublisher(watermillsql.TxFromPgx(tx), watermillsql.PublisherConfig{
		SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{},
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages := make([]*watermillmessage.Message, len(payloads))
	for i, payload := range payloads {
		messages[i] = watermillmessage.NewMessageWithContext(ctx, watermill.NewUUID(), payload)
	}
	return forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: watermillTopic}).
		Publish("order.created", messages...)
}

func (w watermillForwarder) insert(ctx context.Context, tx pgx.Tx, payload []byte) error {
	return w.publish(ctx, tx, payload)
}

func (w watermillForwarder) fill(ctx context.Context, p *place, from, n int) error {
	return inChunks(from, n, func(from, to int) error {
		return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error { return w.publish(ctx, tx, payloads(from, to)...) })
	})
}

func (w watermillForwarder) start(ctx context.Context, p *place) (running, error) {
	pool, err := pgxpool.New(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	subscriber, err := w.subscriber(pool)
	if err != nil {
		return nil, err
	}
	config := amqp.NewDurableTopicConfig(p.amqpURL, p.name, "")
	config.Exchange.Durable = true // as it was declared
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 1 // without it each message opens a channel
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	f, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: watermillTopic})
	if err != nil {
		return nil, err
	}
	return inBackground(ctx, func(ctx context.Context) error {
		defer pool.Close()
		return errors.Join(f.Run(ctx), subscriber.Close(), publisher.Close())
	}), nil
}
