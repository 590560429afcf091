package config

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

const percentEncode = "in user and password write @ : / ? # % as %40 %3A %2F %3F %23 %25"

// ParseDatabaseURL is [pgxpool.ParseConfig], which also reads libpq's PG* variables, with errors that hold no password.
func ParseDatabaseURL(text string) (*pgxpool.Config, error) {
	isURL := strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
	if !isURL && scheme.MatchString(text) {
		return nil, errors.New("must begin with postgres:// or postgresql://, or be keyword=value pairs")
	}
	// postgres://user:12/34@host/db is taken for the host "user", the port 12 and the database "34@host/db".
	if isURL && strings.Contains(pathOf(text), "@") {
		return nil, errors.New("has an @ after the host; " + percentEncode)
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errors.New(databaseReason(err.Error()))
	}
	return config, nil
}

// databaseReason takes the part of pgx's "cannot parse `...`: reason (detail)" that can hold no password.
func databaseReason(message string) string {
	const start = "`: "
	at := strings.LastIndex(message, start)
	if at < 0 {
		return "can't be understood"
	}
	reason := message[at+len(start):]
	switch {
	case strings.HasPrefix(reason, "failed to parse as URL"):
		return "is not a PostgreSQL URL, such as postgres://user@host:5432/database; " + percentEncode
	case strings.HasPrefix(reason, "failed to parse as keyword/value"):
		return "is neither a URL such as postgres://user@host:5432/database nor keyword=value pairs such as host=... dbname=..."
	case strings.HasPrefix(reason, "failed to configure TLS"), strings.HasPrefix(reason, "failed to read service"):
		return reason // the detail names a file
	}
	reason, _, _ = strings.Cut(reason, " (")
	return reason
}

func (l *Loader) checkDatabaseURL(flag, text string) {
	if _, err := ParseDatabaseURL(text); err != nil {
		reason := err.Error()
		if text == "" {
			reason = "libpq's PG* variables are used, and they are wrong: " + reason
		}
		l.Wrong(flag, text, reason)
	}
}

func (l *Loader) checkAMQPURLs(b *Broker) {
	if len(b.AMQPURLs) == 0 {
		l.Wrong("amqp-url", "", "must name at least one amqp:// or amqps:// URL")
	}
	encrypted := false
	for _, text := range b.AMQPURLs {
		uri, err := parseAMQPURL(text)
		if err != nil {
			l.Wrong("amqp-url", text, err.Error())
			return
		}
		encrypted = encrypted || uri.Scheme == "amqps"
	}
	if !encrypted && b.AMQPCAFile+b.AMQPCertFile+b.AMQPKeyFile != "" {
		l.Wrong("amqp-url", strings.Join(b.AMQPURLs, ","), "no URL is amqps://, so the files for TLS would not be used")
	}
}

// parseAMQPURL is amqp.ParseURI with errors that hold no password.
func parseAMQPURL(text string) (amqp.URI, error) {
	uri, err := amqp.ParseURI(text)
	var notURL *url.Error
	switch {
	case errors.As(err, &notURL):
		return uri, errors.New("is not a URL such as amqp://user:password@host:5672/vhost; " + percentEncode)
	case errors.Is(err, strconv.ErrRange) || err == nil && (uri.Port < 1 || uri.Port > 65535):
		return uri, errors.New("the port must be 1 to 65535")
	case err != nil:
		reason, _, _ := strings.Cut(err.Error(), ": ") // the detail quotes the value
		return uri, errors.New(reason)
	case strings.Contains(uri.Host, ","):
		return uri, errors.New("each URL of the list must begin with amqp:// or amqps://")
	case strings.Contains(pathOf(text), "@"):
		return uri, errors.New("has an @ after the host; " + percentEncode)
	}
	return uri, nil
}

// pathOf is what stands between a URL's host and its query.
func pathOf(text string) string {
	_, text, _ = strings.Cut(text, "://")
	_, path, _ := strings.Cut(text, "/")
	path, _, _ = strings.Cut(path, "?")
	return path
}
