package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/config"
	"github.com/outbox-relay/outbox-relay/demo"
)

// DemoCommand shows the relay at work, on throwaway servers unless the user names his own.
type DemoCommand struct {
	Keep        bool          `name:"keep" help:"Leave the servers and the relay up afterwards, for playing, until Ctrl-C."`
	Duration    time.Duration `name:"duration" default:"18s" placeholder:"DURATION" help:"How long the sample shop takes orders."`
	DatabaseURL string        `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"PostgreSQL to use; empty: a throwaway one."`
	AMQPURLs    []string      `name:"amqp-url" env:"AMQP_URL" type:"urls" placeholder:"URL" help:"RabbitMQ to use; empty: a throwaway one."`
}

// AfterApply checks what can be checked without a server.
func (c *DemoCommand) AfterApply(l *config.Loader) error {
	if c.Duration < time.Second {
		l.Wrong("duration", c.Duration, "must be at least 1s")
	}
	if _, err := config.ParseDatabaseURL(c.DatabaseURL); err != nil && c.DatabaseURL != "" {
		l.Wrong("database-url", c.DatabaseURL, err.Error())
	}
	if len(c.AMQPURLs) > 1 {
		l.Wrong("amqp-url", "a list", "the demo takes one URL")
	}
	for _, url := range c.AMQPURLs {
		if _, err := amqp.ParseURI(url); err != nil {
			l.Wrong("amqp-url", url, "is not a URL such as amqp://user:password@host:5672/vhost")
		}
	}
	return nil
}

// Run shows it, with this program as the relay.
func (c *DemoCommand) Run(ctx context.Context, env *Env) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("looking for the program to run as the relay: %w", err)
	}
	// Whoever closes the terminal, or looks away as in `demo | head`, must not keep it from removing what it made.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	o := demo.Options{
		Program: program, DatabaseURL: c.DatabaseURL, Duration: c.Duration, Keep: c.Keep, Out: env.Stdout,
	}
	if len(c.AMQPURLs) > 0 {
		o.AMQPURL = c.AMQPURLs[0]
	}
	return demo.Run(ctx, o)
}
