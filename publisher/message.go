package publisher

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

const (
	appID = "outbox-relay"

	maxShort = 255       // bytes: AMQP 0-9-1, 4.2.5.3, short strings
	maxBody  = 128 << 20 // bytes: RabbitMQ's default max_message_size; one more is answered 406

	// A content header frame (4.2.6.1) around its variable parts: 8 of frame, 14 of class, weight, body size and flags,
	// 1 of delivery mode, 8 of timestamp, and the length octets of five short strings.
	headerOverhead = 8 + 14 + 1 + 8 + 5
)

// A mapper makes messages of events. One goroutine at a time: its header table is used over and over, which is safe
// because the client encodes a message before publishing returns.
type mapper struct {
	exchange string // of events that name none
	route    route
	headers  amqp.Table
}

func newMapper(exchange string, r route) *mapper {
	return &mapper{exchange: exchange, route: r, headers: make(amqp.Table, 8)}
}

// message is valid until the next call. The error of an event that can never be sent is a sentence for a person.
func (m *mapper) message(e *event.Event, frameMax int) (exchange, key string, _ amqp.Publishing, _ error) {
	exchange, key, err := m.destination(e)
	if err != nil {
		return "", "", amqp.Publishing{}, err
	}
	clear(m.headers)
	if len(e.Headers) > 0 {
		if err := parseHeaders(m.headers, e.Headers); err != nil {
			return "", "", amqp.Publishing{}, err
		}
	}
	m.headers[reserved+"aggregate-type"] = e.AggregateType
	m.headers[reserved+"aggregate-id"] = e.AggregateID
	m.headers[reserved+"sequence"] = e.Sequence
	m.headers[reserved+"attempt"] = int64(e.Attempt)
	msg := amqp.Publishing{
		Headers:       m.headers,
		ContentType:   e.ContentType,
		DeliveryMode:  amqp.Persistent,
		CorrelationId: e.AggregateID,
		MessageId:     e.ID.String(),
		Timestamp:     timestamp(e.CreatedAt),
		Type:          e.Type,
		AppId:         appID,
		Body:          e.Payload,
	}
	return exchange, key, msg, check(exchange, key, &msg, frameMax)
}

// destination gives the exchange and the routing key. Safe for concurrent use.
func (m *mapper) destination(e *event.Event) (exchange, key string, err error) {
	exchange = m.exchange
	if e.Exchange != nil {
		exchange = *e.Exchange
	}
	if e.RoutingKey != nil {
		return exchange, *e.RoutingKey, nil
	}
	key, err = m.route(e)
	return exchange, key, err
}

// describe names the destination in reasons. Safe for concurrent use.
func (m *mapper) describe(e *event.Event) string {
	exchange, key, _ := m.destination(e)
	if exchange == "" {
		return fmt.Sprintf("the default exchange with routing key %q", key)
	}
	return fmt.Sprintf("exchange %q with routing key %q", exchange, key)
}

// timestamp leaves out what AMQP's unsigned seconds can't hold.
func timestamp(t time.Time) time.Time {
	if t.Unix() < 0 {
		return time.Time{}
	}
	return t
}

// check keeps off the wire what would make the client or the broker close the channel or the connection.
func check(exchange, key string, msg *amqp.Publishing, frameMax int) error {
	for _, s := range [...]struct{ name, value string }{
		{"exchange", exchange},
		{"routing key", key},
		{"event type (AMQP's type)", msg.Type},
		{"aggregate id (AMQP's correlation id)", msg.CorrelationId},
		{"content type", msg.ContentType},
	} {
		if err := checkShort(s.name, s.value); err != nil {
			return fmt.Errorf("its %w", err)
		}
	}
	if len(msg.Body) > maxBody {
		return fmt.Errorf("its payload has %d bytes; RabbitMQ takes at most %d", len(msg.Body), maxBody)
	}
	size := headerOverhead + tableSize(msg.Headers) +
		len(msg.ContentType) + len(msg.CorrelationId) + len(msg.MessageId) + len(msg.Type) + len(msg.AppId)
	if frameMax > 0 && size > frameMax {
		return fmt.Errorf("its headers and properties fill a frame of %d bytes; the broker takes at most %d (frame_max)",
			size, frameMax)
	}
	return nil
}

func checkShort(name, value string) error {
	if len(value) > maxShort {
		return fmt.Errorf("%s %.40q... has %d bytes; AMQP takes at most %d", name, value, len(value), maxShort)
	}
	return nil
}
