package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/pki"
)

// enrollFlags say how nodes get their certificates from this coordinator.
type enrollFlags struct {
	certFile, keyFile string
	life              time.Duration
	tokenFile         string
	kubernetes        bool
	kubeconfig        string
	account, audience string
}

func addEnrollFlags(app *kingpin.Application) *enrollFlags {
	f := &enrollFlags{}
	app.Flag("enroll.ca-cert", "PEM file of the authority that signs the certificates of nodes that enroll. Nodes trust all authorities in it: the coordinator's certificate has to come from one of them. If empty, no node can enroll.").StringVar(&f.certFile)
	app.Flag("enroll.ca-key", "PEM file of the key of the first certificate in --enroll.ca-cert.").StringVar(&f.keyFile)
	app.Flag("enroll.certificate-life", "Life of the certificates of nodes that enroll. A node renews its certificate after two thirds of it.").Default(enroll.DefaultLife.String()).DurationVar(&f.life)
	app.Flag("enroll.join-token-file", "File of the hashes of join tokens, which graylink join-token writes. With it, a token enrolls the node that it was made for, once. The file may change at any time. If empty, join tokens are refused.").StringVar(&f.tokenFile)
	app.Flag("enroll.kubernetes", "Let pods of the node agent enroll their nodes by the token of their service account, which the API server of Kubernetes has to confirm. Nodes have the same names in Kubernetes and in the topology.").BoolVar(&f.kubernetes)
	app.Flag("enroll.kubernetes-service-account", "NAMESPACE/NAME of the service account of the node agent.").Default("graylink/graylink-node").StringVar(&f.account)
	app.Flag("enroll.kubernetes-audience", "Audience of the tokens of the node agent.").Default(enroll.DefaultAudience).StringVar(&f.audience)
	app.Flag("enroll.kubeconfig", "Kubeconfig for the questions to the API server. If empty, the service account of the coordinator's pod is used.").StringVar(&f.kubeconfig)
	return f
}

// validate returns an error if flags are missing beside others.
func (f *enrollFlags) validate() error {
	switch {
	case (f.certFile == "") != (f.keyFile == ""):
		return errors.New("--enroll.ca-cert and --enroll.ca-key belong together")
	case f.certFile == "" && (f.tokenFile != "" || f.kubernetes):
		return errors.New("--enroll.join-token-file and --enroll.kubernetes need --enroll.ca-cert and --enroll.ca-key")
	case f.certFile != "" && f.tokenFile == "" && !f.kubernetes:
		return errors.New("--enroll.ca-cert needs --enroll.join-token-file or --enroll.kubernetes: nothing else lets a node enroll")
	}
	return nil
}

// openUsedTokens returns the record of used join tokens, which is beside the state file. A coordinator of a pair has it, too, if
// it accepts no tokens itself. Otherwise it returns nil.
func (f *enrollFlags) openUsedTokens(o *coordinator.Options) (*jointoken.Record, error) {
	if f.tokenFile == "" && !o.HA.Paired() {
		return nil, nil
	}
	used, err := jointoken.OpenRecord(o.StateFile+".tokens", time.Now())
	if err != nil {
		return nil, fmt.Errorf("used join tokens: %w", err)
	}
	o.UsedTokens = used
	return used, nil
}

// enrollment is the service that signs certificates, and what it uses.
type enrollment struct {
	service *enroll.Service // nil if no node can enroll
	sources []pki.Source    // certificates in use
	closers []io.Closer
}

// server returns the service of the protocol, or nil.
func (e *enrollment) server() agentapi.EnrollmentServer {
	if e.service == nil {
		return nil
	}
	return e.service
}

func (e *enrollment) close() error {
	var errs []error
	for _, c := range e.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// open returns the service that the flags describe. It closes used, the record of used tokens, which may be nil.
func (f *enrollFlags) open(c *coordinator.Coordinator, certificates *pki.Keeper, used *jointoken.Record, log *slog.Logger) (*enrollment, error) {
	e := &enrollment{}
	if used != nil {
		e.closers = append(e.closers, used)
	}
	if f.certFile == "" {
		return e, nil
	}
	o := enroll.Options{Life: f.life, Known: c.HasNode, Accepted: certificates.Verify, Log: log}
	if err := f.readAuthorities(&o, certificates); err != nil {
		return nil, err
	}
	if f.tokenFile != "" {
		book, err := jointoken.NewBook(f.tokenFile, used)
		if err != nil {
			return nil, fmt.Errorf("join tokens: %w", err)
		}
		o.Tokens, o.ConfirmUse = book, c.ConfirmTokenUse
	}
	var err error
	if f.kubernetes {
		api, err := kubeapi.Open(f.kubeconfig, "graylink-coordinator")
		if err != nil {
			return nil, errors.Join(err, e.close())
		}
		e.sources = append(e.sources, api)
		if o.Kubernetes, err = enroll.NewReviewer(api, f.audience, f.account); err != nil {
			return nil, errors.Join(fmt.Errorf("--enroll.kubernetes-service-account, --enroll.kubernetes-audience: %w", err), e.close())
		}
	}
	if e.service, err = enroll.New(o); err != nil {
		return nil, errors.Join(fmt.Errorf("--enroll.certificate-life, --enroll.ca-cert: %w", err), e.close())
	}
	e.sources = append(e.sources, pki.NewWatch(pki.FilesOf(f.certFile, "")...))
	return e, nil
}

// readAuthorities reads the authority that signs, and those that nodes have to trust. It returns an error if agents would
// not trust this coordinator, or this coordinator not the agents.
func (f *enrollFlags) readAuthorities(o *enroll.Options, certificates *pki.Keeper) (err error) {
	if o.Authority, err = pki.OpenAuthority(f.certFile, f.keyFile); err != nil {
		return err
	}
	if o.Authorities, err = os.ReadFile(f.certFile); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	for _, c := range pki.ParseCertificates(o.Authorities) {
		roots.AddCert(c)
	}
	if err := certificates.CheckOwn(roots); err != nil {
		return fmt.Errorf("--agents.cert is of no authority in %s, so nodes that enroll would not trust this coordinator: %w", f.certFile, err)
	}
	if !certificates.Trusts(o.Authority.Certificate()) {
		return fmt.Errorf("--agents.ca has not the first authority of %s, so certificates that it signs would not be accepted", f.certFile)
	}
	return nil
}
