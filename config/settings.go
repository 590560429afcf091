// Package config defines every setting of outbox-relay once: its flag, its environment variable, its line in the config
// file, its default, what is right for it, and its help text.
//
// A value is taken from the command line, else from the environment, else from the YAML file that --config names, else
// from the default. The file's keys are the names of the flags. A variable that is set but empty counts as given.
//
// Whatever is wrong is collected and reported together in one [Error], before anything connects. No message of this
// package shows a password; [Redact] is the same care for other packages.
//
// A command embeds the groups of settings that it needs (File, Log, Database, Broker, Relay, or Settings, which is
// all of them); a [Loader] makes the parser that fills them in.
package config

import "time"

// Settings is all there is to set: what the command run takes, and what the config file may hold.
type Settings struct {
	File     `group:"General:"`
	Log      `group:"General:"`
	Database `group:"PostgreSQL:"`
	Broker   `group:"RabbitMQ:"`
	Relay    `group:"Relay:"`
}

// File is the config file.
type File struct {
	Config string `name:"config" env:"OUTBOX_CONFIG" placeholder:"FILE" help:"YAML file of settings; its keys are the flags' names, as in \"scan-interval: 5s\"."`
}

// Log says what is logged, and how.
type Log struct {
	LogLevel  string `name:"log-level" env:"OUTBOX_LOG_LEVEL" default:"info" placeholder:"LEVEL" help:"Least level that is logged: debug, info, warn or error."`
	LogFormat string `name:"log-format" env:"OUTBOX_LOG_FORMAT" default:"auto" placeholder:"FORMAT" help:"text, json, or auto: text on a terminal, else JSON."`
}

// Database says where the outbox is.
type Database struct {
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"PostgreSQL with the outbox, as a URL or as keyword=value pairs; empty: libpq's PG* variables."`
	Schema      string `name:"schema" env:"OUTBOX_SCHEMA" default:"outbox" placeholder:"NAME" help:"Schema that holds the outbox's tables."`
}

// Broker says where RabbitMQ is, and how events are addressed there.
type Broker struct {
	AMQPURLs     []string `name:"amqp-url" env:"AMQP_URL" default:"amqp://guest:guest@localhost:5672/" type:"urls" placeholder:"URL,..." help:"RabbitMQ; several URLs, separated by commas, are tried in turn."`
	AMQPCAFile   string   `name:"amqp-ca-file" env:"OUTBOX_AMQP_CA_FILE" placeholder:"FILE" help:"PEM file of the authorities trusted for amqps; empty: the system's."`
	AMQPCertFile string   `name:"amqp-cert-file" env:"OUTBOX_AMQP_CERT_FILE" placeholder:"FILE" help:"PEM file of the client certificate for amqps."`
	AMQPKeyFile  string   `name:"amqp-key-file" env:"OUTBOX_AMQP_KEY_FILE" placeholder:"FILE" help:"PEM file of the client certificate's key."`
	Exchange     string   `name:"exchange" env:"OUTBOX_EXCHANGE" default:"outbox" placeholder:"NAME" help:"Exchange for events that name none."`
	ExchangeType string   `name:"exchange-type" env:"OUTBOX_EXCHANGE_TYPE" default:"topic" placeholder:"TYPE" help:"Type to declare the exchange with: direct, topic, fanout, headers or a plugin's x-...; empty: do not declare it."`
	RoutingKey   string   `name:"routing-key" env:"OUTBOX_ROUTING_KEY" default:"{{.EventType}}" placeholder:"TEMPLATE" help:"Routing key of events that name none: a Go template over the event."`
	Unroutable   string   `name:"unroutable" env:"OUTBOX_UNROUTABLE" default:"retry" placeholder:"POLICY" help:"What becomes of an event that no queue is bound for: retry, dead, or accept (count it as published)."`
}

// Relay says how the relay works.
type Relay struct {
	ListenURL      string        `name:"listen-url" env:"OUTBOX_LISTEN_URL" placeholder:"URL" group:"PostgreSQL:" help:"Direct connection for LISTEN, when database-url leads to a pooler; empty: database-url."`
	Wake           string        `name:"wake" env:"OUTBOX_WAKE" default:"notify" placeholder:"HOW" help:"notify: the database wakes the relay; none: only the scan finds events."`
	ScanInterval   time.Duration `name:"scan-interval" env:"OUTBOX_SCAN_INTERVAL" default:"5s" placeholder:"DURATION" help:"Time between two scans for what no notification told of."`
	BatchSize      int           `name:"batch-size" env:"OUTBOX_BATCH_SIZE" default:"500" placeholder:"EVENTS" help:"Most events that one claim takes, 1 to 10000."`
	Lease          time.Duration `name:"lease" env:"OUTBOX_LEASE" default:"1m" placeholder:"DURATION" help:"Time after which another relay may take over a claim; longer than confirm-timeout."`
	MaxAttempts    int           `name:"max-attempts" env:"OUTBOX_MAX_ATTEMPTS" default:"20" placeholder:"N" help:"Attempts after which an event is DEAD."`
	BackoffBase    time.Duration `name:"backoff-base" env:"OUTBOX_BACKOFF_BASE" default:"1s" placeholder:"DURATION" help:"Wait before the first retry, jittered; it doubles with each attempt, ten times at most."`
	BackoffMax     time.Duration `name:"backoff-max" env:"OUTBOX_BACKOFF_MAX" default:"17m" placeholder:"DURATION" help:"Longest wait between two attempts."`
	ConfirmTimeout time.Duration `name:"confirm-timeout" env:"OUTBOX_CONFIRM_TIMEOUT" default:"30s" placeholder:"DURATION" help:"Time that RabbitMQ has to confirm an event."`
	Retention      time.Duration `name:"retention" env:"OUTBOX_RETENTION" default:"72h" placeholder:"DURATION" help:"Time that PUBLISHED events are kept; 0: deleted when published."`
	Grace          time.Duration `name:"grace" env:"OUTBOX_GRACE" default:"20s" placeholder:"DURATION" help:"Time after SIGTERM for outstanding confirms and their marks."`
	HTTPAddr       string        `name:"http-addr" env:"OUTBOX_HTTP_ADDR" default:"127.0.0.1:9180" placeholder:"HOST:PORT" help:"Address for metrics, health and API; empty: off."`
}
