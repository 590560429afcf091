package publisher

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	plain := stacktest.AMQP(t)
	ours, other := newAuthority(t), newAuthority(t)
	for name, test := range map[string]struct {
		server  *tls.Config
		host    string
		options func(*Options)
		wrong   string // in the error; empty: connects
	}{
		"good": {server: &tls.Config{Certificates: pairs(ours.issue(t, "127.0.0.1", time.Hour))}},
		"good, both sides": {
			server: &tls.Config{
				Certificates: pairs(ours.issue(t, "127.0.0.1", time.Hour)),
				ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ours.pool(),
			},
			options: func(o *Options) { o.CertFile, o.KeyFile = ours.issue(t, "relay", time.Hour).files(t) },
		},
		"no client certificate": {
			server: &tls.Config{
				Certificates: pairs(ours.issue(t, "127.0.0.1", time.Hour)),
				ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ours.pool(),
			},
			wrong: "it may want a client certificate",
		},
		"unknown CA": {
			server: &tls.Config{Certificates: pairs(other.issue(t, "127.0.0.1", time.Hour))},
			wrong:  "signed by an unknown CA",
		},
		"wrong name": {
			server: &tls.Config{Certificates: pairs(ours.issue(t, "broker.example", time.Hour))},
			wrong:  `for another name than "127.0.0.1"`,
		},
		"expired": {
			server: &tls.Config{Certificates: pairs(ours.issue(t, "127.0.0.1", -time.Hour))},
			wrong:  "has expired or is not valid yet",
		},
	} {
		t.Run(name, func(t *testing.T) {
			front := tlsFront(t, plain, test.server)
			front.User = url.UserPassword("guest", "guest")
			o := options(front.String())
			o.CAFile = ours.file(t)
			if test.options != nil {
				test.options(&o)
			}
			b := run(t, o)
			if test.wrong == "" {
				b.await(b.Ready(), "ready")
				b.want(b.publish(made("a", 100)...), "100 returned")
				return
			}
			eventually(t, "an error is logged", func() bool { return strings.Contains(b.logs.String(), "no connection") })
			if r := b.State().Reason; !strings.Contains(r, test.wrong) {
				t.Error(r)
			}
		})
	}
	t.Run("plain client", func(t *testing.T) {
		front := tlsFront(t, plain, &tls.Config{Certificates: pairs(ours.issue(t, "127.0.0.1", time.Hour))})
		front.Scheme = "amqp"
		b := run(t, options(front.String()))
		eventually(t, "an error is logged", func() bool { return strings.Contains(b.logs.String(), "no connection") })
		if r := b.State().Reason; !strings.Contains(r, "the AMQP handshake broke off") {
			t.Error(r)
		}
	})
	t.Run("plain server", func(t *testing.T) {
		b := run(t, options(strings.Replace(plain, "amqp://", "amqps://", 1)))
		eventually(t, "an error is logged", func() bool { return strings.Contains(b.logs.String(), "no connection") })
		if r := b.State().Reason; !strings.Contains(r, "no TLS is spoken") {
			t.Error(r)
		}
	})
}

// tlsFront speaks TLS and forwards to the broker.
func tlsFront(t *testing.T, broker string, config *tls.Config) *url.URL {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var goroutines sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		goroutines.Wait()
	})
	goroutines.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", u.Host)
			if err != nil {
				t.Error(err)
				_ = client.Close()
				continue
			}
			carry := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
				_ = from.Close()
			}
			goroutines.Go(func() { carry(client, server) })
			goroutines.Go(func() { carry(server, client) })
		}
	})
	return &url.URL{Scheme: "amqps", Host: listener.Addr().String(), Path: u.Path}
}

// An authority issues certificates.
type authority struct{ issued }

type issued struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return &authority{issue(t, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA " + t.Name()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})}
}

// issue gives a certificate for a name or address that is valid for that long from now, or was until that long ago.
func (a *authority) issue(t *testing.T, name string, valid time.Duration) issued {
	t.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotAfter:    time.Now().Add(valid),
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	return issue(t, &a.issued, template)
}

func issue(t *testing.T, parent *issued, template *x509.Certificate) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent = &issued{template, key}
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-2 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent.certificate, &key.PublicKey, parent.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return issued{certificate, key}
}

func pairs(i issued) []tls.Certificate {
	return []tls.Certificate{{Certificate: [][]byte{i.certificate.Raw}, PrivateKey: i.key}}
}

func (i issued) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(i.certificate)
	return pool
}

func (i issued) file(t *testing.T) string {
	t.Helper()
	return writePEM(t, "CERTIFICATE", i.certificate.Raw)
}

func (i issued) files(t *testing.T) (certificate, key string) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return i.file(t), writePEM(t, "EC PRIVATE KEY", der)
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
