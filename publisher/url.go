package publisher

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// An endpoint is one of the broker's addresses.
type endpoint struct {
	raw   string // with the password
	uri   amqp.URI
	shown string // without credentials, for logs and errors
}

const encode = "; in user name, password and vhost, : @ / ? # % must be percent-encoded"

func parseEndpoint(raw string) (endpoint, error) {
	// The text is never part of the error, nor is what net/url says, which may quote the password.
	u, err := url.Parse(raw)
	switch {
	case strings.ContainsAny(raw, " \t\r\n"):
		return endpoint{}, errors.New("there is white space in it")
	case err != nil:
		return endpoint{}, errors.New("it is no URL" + encode)
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return endpoint{}, errors.New("it must begin with amqp:// or amqps://")
	}
	// amqp://user:12/34@host is taken for the host "user", the port 12 and the vhost "34@host".
	if strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@") {
		return endpoint{}, errors.New("there is an @ after the host" + encode)
	}
	uri, err := amqp.ParseURI(raw)
	if err != nil {
		return endpoint{}, errors.New("its port or one of its parameters heartbeat, connection_timeout, channel_max " +
			"is no number in range")
	}
	shown := url.URL{Scheme: uri.Scheme, Host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), Path: "/"}
	if uri.Vhost != "/" {
		shown.Path, shown.RawPath = "/"+uri.Vhost, "/"+url.PathEscape(uri.Vhost)
	}
	return endpoint{raw: raw, uri: uri, shown: shown.String()}, nil
}

// tlsConfig reads the files anew each time, so that a renewed certificate is used from the next connection on. What
// Options leave open is taken from the URL (https://www.rabbitmq.com/docs/uri-query-parameters).
func (o *Options) tlsConfig(uri amqp.URI) (*tls.Config, error) {
	or := func(option, parameter string) string {
		if option != "" {
			return option
		}
		return parameter
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: or(uri.ServerName, uri.Host)}
	if name := or(o.CAFile, uri.CACertFile); name != "" {
		pem, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the CA file %s: there is no PEM certificate in it", name)
		}
	}
	cert, key := or(o.CertFile, uri.CertFile), or(o.KeyFile, uri.KeyFile)
	if (cert == "") != (key == "") {
		return nil, errors.New("a client certificate needs both a certificate file and a key file")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate %s and its key %s: %w", cert, key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
