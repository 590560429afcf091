package publisher

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A hint is an error with what it means to the person on call.
type hint struct {
	text string
	err  error
}

func (h *hint) Error() string { return h.text + " (" + words(h.err) + ")" }
func (h *hint) Unwrap() error { return h.err }

// words gives an error's text; of the broker's own, code and text; of the client's, without a code of its making.
func words(err error) string {
	e, ok := err.(*amqp.Error) //nolint:errorlint // what wraps it says more
	switch {
	case ok && e.Server:
		return fmt.Sprintf("%d %s", e.Code, e.Reason)
	case ok:
		return e.Reason
	}
	return err.Error()
}

// explainDial says in plain words why no connection came about. err never holds a password: the broker's and the
// client's texts have none.
func explainDial(err error, uri amqp.URI) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return &hint{"the broker's certificate is signed by an unknown CA; give the CA's certificate as --amqp-ca-file", err}
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return &hint{fmt.Sprintf("the broker's certificate is for another name than %q", uri.Host), err}
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return &hint{"the broker's certificate has expired or is not valid yet (or this machine's clock is wrong)", err}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &hint{"no TLS is spoken at that port; amqps is usually at 5671", err}
	}
	// TLS 1.3 lets the client's handshake end before the server refuses it; then only the text is left, or, where the client
	// was writing just then, not even that.
	if strings.Contains(words(err), "remote error: tls:") || uri.Scheme == "amqps" && errors.Is(err, amqp.ErrClosed) {
		return &hint{"the broker broke off the TLS handshake; it may want a client certificate (--amqp-cert-file)", err}
	}
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok:
		return err
	case e.Code == amqp.AccessRefused:
		return &hint{fmt.Sprintf("user %q is refused: a wrong name or password, or one that may log in only from the "+
			"broker's own host", uri.Username), err}
	case e.Code == amqp.NotAllowed:
		return &hint{fmt.Sprintf("user %q gets no connection to vhost %q: there is no such vhost, no permission for it, or "+
			"a limit is reached", uri.Username, uri.Vhost), err}
	}
	return &hint{"the AMQP handshake broke off; is it RabbitMQ's port, and amqp or amqps as it expects?", err}
}

// explainExchange says in plain words why the configured exchange can't be used.
func (o *Options) explainExchange(err error, vhost string) error {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok || !e.Server {
		return fmt.Errorf("checking exchange %q in vhost %q: %w", o.Exchange, vhost, err)
	}
	name := fmt.Sprintf("exchange %q in vhost %q", o.Exchange, vhost)
	switch e.Code {
	case amqp.PreconditionFailed:
		return &hint{fmt.Sprintf("%s is not a durable %s exchange; set --exchange-type to its type, or to nothing to take "+
			"it as it is", name, o.ExchangeType), err}
	case amqp.NotFound:
		return &hint{name + " does not exist; make it, or set --exchange-type to have it declared", err}
	case amqp.AccessRefused:
		return &hint{name + " can't be declared or used with this user's permissions; grant them, or set --exchange-type " +
			"to nothing if it exists", err}
	case amqp.CommandInvalid:
		return &hint{fmt.Sprintf("%s can't be declared: the broker knows no --exchange-type %q", name, o.ExchangeType), err}
	}
	return fmt.Errorf("checking %s: %s", name, words(err))
}

// isOfEvent tells whether the broker closed a channel or connection because of what was published on it.
func isOfEvent(cause error) bool {
	e, ok := errors.AsType[*amqp.Error](cause)
	return ok && e.Server && e.Code != amqp.ConnectionForced && !errors.Is(cause, errRefused)
}

// isSoft tells that only the channel was closed for it, so that the broker is well itself.
func isSoft(cause error) bool {
	e, ok := errors.AsType[*amqp.Error](cause)
	return ok && e.Recover && isOfEvent(cause)
}

// isTopicRefusal tells that a permission is missing for a routing key, not for the exchange
// (https://www.rabbitmq.com/docs/access-control#topic-authorisation).
func isTopicRefusal(e *amqp.Error) bool {
	return e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "access to topic")
}
