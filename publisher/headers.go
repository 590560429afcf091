package publisher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// reserved begins the names of the relay's own headers. An event's headers of such a name are dropped.
const reserved = "x-outbox-"

// parseHeaders adds the members of a JSON object to an AMQP table. Objects become tables, arrays arrays. A number
// becomes an int64 or a float64 if that keeps all its digits, else the string that it was.
func parseHeaders(table amqp.Table, object []byte) error {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return fmt.Errorf("its headers are no JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("its headers are more than one JSON value")
	}
	if value == nil {
		return nil
	}
	members, ok := value.(map[string]any)
	if !ok {
		return errors.New("its headers are no JSON object")
	}
	for name, v := range members {
		if strings.HasPrefix(name, reserved) {
			continue
		}
		field, err := headerField(v)
		if err == nil {
			err = checkHeader(name, field)
		}
		if err != nil {
			return fmt.Errorf("its header %.40q: %w", name, err)
		}
		table[name] = field
	}
	return nil
}

// checkHeader refuses what the broker would close the channel or connection for: long names, and CC and BCC (sender-
// selected distribution, https://www.rabbitmq.com/docs/sender-selected) that are no array.
func checkHeader(name string, field any) error {
	if _, isArray := field.([]any); !isArray && (name == "CC" || name == "BCC") {
		return errors.New("RabbitMQ takes only an array of routing keys here")
	}
	return checkShort("name", name)
}

func headerField(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		return headerNumber(v.String()), nil
	case []any:
		for i := range v {
			field, err := headerField(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = field
		}
		return v, nil
	case map[string]any:
		for name := range v {
			if err := checkShort("name", name); err != nil {
				return nil, err
			}
			field, err := headerField(v[name])
			if err != nil {
				return nil, err
			}
			v[name] = field
		}
		return amqp.Table(v), nil
	default: // string, bool, nil
		return v, nil
	}
}

func headerNumber(text string) any {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || digits(strconv.FormatFloat(f, 'e', -1, 64)) != digits(text) {
		return text
	}
	return f
}

// digits gives a number's significant digits. Its exponent needs no look: a float64 nearest to a number that has the
// same digits but another exponent does not exist, but for zero, which has no digits.
func digits(number string) string {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	mantissa = strings.ReplaceAll(strings.TrimPrefix(mantissa, "-"), ".", "")
	return strings.Trim(mantissa, "0")
}

// tableSize is the length of the encoded table (AMQP 0-9-1, 4.2.5.5, with RabbitMQ's field types).
func tableSize(t amqp.Table) int {
	size := 4
	for name, v := range t {
		size += 1 + len(name) + fieldSize(v)
	}
	return size
}

func fieldSize(v any) int {
	switch v := v.(type) {
	case nil:
		return 1
	case bool:
		return 2
	case string:
		return 5 + len(v)
	case []any:
		size := 5
		for _, v := range v {
			size += fieldSize(v)
		}
		return size
	case amqp.Table:
		return 1 + tableSize(v)
	case int64, float64:
		return 9
	}
	return math.MaxInt32 // no other type comes from JSON
}
