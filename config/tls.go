package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// checkTLS reads the files once, so that a wrong one is told before anything connects. Whoever connects reads them again.
func (l *Loader) checkTLS(b *Broker) {
	if b.AMQPCAFile != "" {
		switch text, err := os.ReadFile(b.AMQPCAFile); {
		case err != nil:
			l.Wrong("amqp-ca-file", b.AMQPCAFile, fmt.Sprintf("can't be read: %v", cause(err)))
		case !x509.NewCertPool().AppendCertsFromPEM(text):
			l.Wrong("amqp-ca-file", b.AMQPCAFile, "holds no certificate in PEM form")
		}
	}
	switch {
	case b.AMQPCertFile == "" && b.AMQPKeyFile == "":
	case b.AMQPCertFile == "":
		l.Wrong("amqp-cert-file", "", "must be set too, because "+l.name("amqp-key-file")+" is")
	case b.AMQPKeyFile == "":
		l.Wrong("amqp-key-file", "", "must be set too, because "+l.name("amqp-cert-file")+" is")
	default:
		if _, err := tls.LoadX509KeyPair(b.AMQPCertFile, b.AMQPKeyFile); err != nil {
			l.Wrong("amqp-cert-file", b.AMQPCertFile,
				fmt.Sprintf("does not go with %s, which is %q: %v", l.name("amqp-key-file"), b.AMQPKeyFile, err))
		}
	}
}
