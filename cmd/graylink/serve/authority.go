package serve

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/pki"
)

// Lives of certificates. Those of the site's own parts are renewed when a third of their life is left.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	ownLife       = 90 * 24 * time.Hour
	renewEvery    = time.Hour
)

// Names in the certificates of the site's own parts.
const (
	coordinatorName = "coordinator"
	analyzerName    = "analyzer"
)

// authority is the certificate authority of a site, with the certificates of its own parts. It implements pki.Source.
type authority struct {
	o       *Options
	pair    pki.Pair
	signer  *pki.Authority
	own     *pki.Keeper // of the coordinator
	service *enroll.Service
}

// openAuthority reads the authority and the certificates of the site, and makes what is missing.
func openAuthority(o *Options, now time.Time) (a *authority, err error) {
	a = &authority{o: o}
	if err := os.MkdirAll(o.file("pki"), 0o700); err != nil {
		return nil, err
	}
	if a.pair, err = readPair(a.files("ca")); errors.Is(err, fs.ErrNotExist) {
		if a.pair, err = pki.NewAuthority("graylink site", authorityLife, now); err == nil {
			err = writePair(a.files("ca"), a.pair)
		}
	}
	if err == nil {
		a.signer, err = pki.ParseAuthority(a.pair)
	}
	if err == nil {
		err = a.issue(now)
	}
	if err == nil {
		a.own, err = pki.Open(a.files(coordinatorName), func(err error) { o.Log.Error("cannot use the changed certificates", "err", err) })
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// files returns the files of a certificate of the site.
func (a *authority) files(name string) pki.Files {
	return pki.Files{CA: a.o.AuthorityFile(), Cert: a.o.file("pki", name+".crt"), Key: a.o.file("pki", name+".key")}
}

func readPair(f pki.Files) (p pki.Pair, err error) {
	if p.Cert, err = os.ReadFile(f.Cert); err != nil {
		return p, err
	}
	p.Key, err = os.ReadFile(f.Key)
	return p, err
}

// writePair writes the key first: a certificate without its key is of no use.
func writePair(f pki.Files, p pki.Pair) error {
	if err := durable.WriteFile(f.Key, p.Key); err != nil {
		return err
	}
	return durable.WriteFile(f.Cert, p.Cert)
}

// issue makes the certificates of the site's own parts that are missing, end soon or lack a name.
func (a *authority) issue(now time.Time) error {
	for name, names := range map[string][]string{coordinatorName: append([]string{coordinatorName, "localhost", "127.0.0.1", "::1"}, a.o.Names...), analyzerName: {analyzerName}} {
		files := a.files(name)
		if p, err := readPair(files); err == nil && isGood(p, names, now) {
			continue
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p, err := pki.Issue(a.pair, names, ownLife, now)
		if err == nil {
			err = writePair(files, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isGood reports whether a certificate has all names and more than a third of its life before it.
func isGood(p pki.Pair, names []string, now time.Time) bool {
	certificates := pki.ParseCertificates(p.Cert)
	if len(certificates) == 0 {
		return false
	}
	c := certificates[0]
	has := pki.NamesOf(c)
	lacks := slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(has, n) })
	return !lacks && c.NotAfter.Sub(now) > c.NotAfter.Sub(c.NotBefore)/3
}

// renew renews the certificates of the site's own parts until ctx ends. Those that use them notice.
func (a *authority) renew(ctx context.Context) {
	t := time.NewTicker(cmp.Or(a.o.renewEvery, renewEvery))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			if err := a.issue(now); err != nil {
				a.o.Log.Error("cannot renew the certificates of this site", "err", err)
			}
		}
	}
}

// offer lets nodes enroll.
func (a *authority) offer(o enroll.Options) (err error) {
	o.Authority, o.Authorities = a.signer, a.pair.Cert
	o.Accepted = func(chain []*x509.Certificate) error { return a.own.Verify(chain) }
	a.service, err = enroll.New(o)
	return err
}

// agentPort returns how the analyzer reaches the coordinator's port for agents.
func (a *authority) agentPort(address string) *daemon.AgentPort {
	f := a.files(analyzerName)
	return &daemon.AgentPort{Address: loopbackOf(address), ServerName: coordinatorName, CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key}
}

// Expiries implements pki.Source.
func (a *authority) Expiries() []pki.Expiry { return a.own.Expiries() }
