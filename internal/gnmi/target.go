package gnmi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"

	"github.com/openconfig/gnmic/pkg/api"
	"github.com/openconfig/gnmic/pkg/api/target"
	"google.golang.org/grpc"
)

// openTarget returns the library's target of the switch with its connection, which the first call establishes. dial
// is nil if the target dials by itself. Files are read again for every connection.
func (s *session) openTarget(ctx context.Context, dial dialer) (*target.Target, error) {
	options := []api.TargetOption{api.Name(s.name), api.Timeout(s.agent.config.Timeout)}
	calls := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithUserAgent("graylink"),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(1 << 20)}
	if dial != nil {
		// The target divides addresses at commas, which the name of a switch that connects by itself may have.
		options = append(options, api.Address("passthrough:///"+url.PathEscape(s.address)), keepDialer)
		calls = append(calls, grpc.WithContextDialer(dial))
	} else {
		options = append(options, api.Address(s.address))
	}
	access, login, err := s.accessOptions()
	if err != nil {
		return nil, err
	}
	if login != nil {
		calls = append(calls, grpc.WithPerRPCCredentials(login))
	}
	t, err := api.NewTarget(append(options, access...)...)
	if err != nil {
		return nil, &failure{kindConnect, err}
	}
	if err := t.CreateGNMIClient(ctx, calls...); err != nil {
		return nil, &failure{kindConnect, err}
	}
	return t, nil
}

// keepDialer has the target use the dialer among gRPC's options, where it would otherwise dial by itself.
func keepDialer(t *target.Target) error {
	t.Config.TunnelTargetType = tunnelType
	return nil
}

// accessOptions returns the options for TLS and a token, and the metadata of every call if a name and a password are
// configured. The library's option for these would send them without TLS as well, and only with its own calls.
func (s *session) accessOptions() ([]api.TargetOption, callMetadata, error) {
	c := &s.agent.config
	if c.TLS.Insecure {
		return []api.TargetOption{api.Insecure(true)}, nil, nil
	}
	config, err := loadTLSConfig(c.TLS)
	if err != nil {
		return nil, nil, &failure{kindConnect, err}
	}
	options := []api.TargetOption{api.TLSConfig(config)}
	switch {
	case c.TokenFile != "":
		token, err := readSecret(c.TokenFile)
		if err != nil {
			return nil, nil, &failure{kindAuth, err}
		}
		return append(options, api.Token(token)), nil, nil
	case c.PasswordFile != "":
		login, err := s.readLogin()
		if err != nil {
			return nil, nil, &failure{kindAuth, err}
		}
		return options, login, nil
	}
	return options, nil, nil
}

// readLogin reads the name and the password, and returns them in the form of the vendor.
func (s *session) readLogin() (callMetadata, error) {
	user, err := readSecret(s.agent.config.UsernameFile)
	if err != nil {
		return nil, err
	}
	password, err := readSecret(s.agent.config.PasswordFile)
	if err != nil {
		return nil, err
	}
	if s.agent.preset.Basic {
		return callMetadata{"authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}, nil
	}
	return callMetadata{"username": user, "password": password}, nil
}

// loadTLSConfig reads the files of a configuration. The library's own reader refuses a switch's self-signed
// certificate as authority, accepts a file without any, and ignores the name of the server where no file is set.
func loadTLSConfig(c TLS) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.Server, InsecureSkipVerify: c.SkipVerify} //nolint:gosec // as configured
	if c.CA != "" {
		var err error
		if config.RootCAs, err = loadCertPool(c.CA); err != nil {
			return nil, err
		}
	}
	if c.Cert != "" {
		pair, err := loadKeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// loadCertPool returns the certificates of a file.
func loadCertPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: holds no PEM certificate", file)
	}
	return pool, nil
}

// loadKeyPair returns the key pair of two files.
func loadKeyPair(cert, key string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("%s with %s: %w", cert, key, err)
	}
	return pair, nil
}

// callMetadata is the metadata of every call.
type callMetadata map[string]string

func (l callMetadata) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return l, nil
}

func (callMetadata) RequireTransportSecurity() bool { return true }
