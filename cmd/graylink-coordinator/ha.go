package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease"
	"github.com/graylink/graylink/internal/pki"
)

// namespaceFile has the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// haFlags describe the other coordinator of the fleet.
type haFlags struct {
	options                     *coordinator.HAOptions
	addresses                   []string // of the coordinators, perhaps with this one's own
	namespace, name, kubeconfig string
}

func addHAFlags(app *kingpin.Application, o *coordinator.HAOptions) *haFlags {
	f := &haFlags{options: o}
	app.Flag("ha.peer-address", "Where the other coordinator of the fleet accepts agents, as agents have it in --coordinator.address. One of the two leads, and the other one is its standby. If empty, there is no other one. May be given twice: an address whose host is --ha.identity, or that and a domain, is this coordinator's own.").StringsVar(&f.addresses)
	app.Flag("ha.peers", "Name in the certificate of the other coordinator. May be given several times. Whoever has a certificate for one of them gets the state, which holds the fleet's secrets.").StringsVar(&o.Peers)
	app.Flag("ha.peer-server-name", `Name that the certificate of the other coordinator must have. The default is the host of its address, or "coordinator" for a unix socket.`).StringVar(&o.PeerServerName)
	app.Flag("ha.mode", "What makes the standby the leader: manual is POST /-/promote, lease is a Lease of Kubernetes as well.").Default(coordinator.ModeManual).EnumVar(&o.Mode, coordinator.ModeManual, coordinator.ModeLease)
	app.Flag("ha.identity", "Name of this coordinator, which the other one has not. The default is the host name.").StringVar(&o.Identity)
	app.Flag("ha.initial-leader", "Identity of the coordinator that leads when neither has a state. If empty, neither leads until POST /-/promote.").StringVar(&o.InitialLeader)
	app.Flag("ha.lease-namespace", "Namespace of the lease. The default is the pod's.").StringVar(&f.namespace)
	app.Flag("ha.lease-name", "Name of the lease. It is created when it is missing.").Default("graylink-coordinator").StringVar(&f.name)
	app.Flag("ha.kubeconfig", "Kubeconfig for the requests for the lease. If empty, the service account of the pod is used.").StringVar(&f.kubeconfig)
	return f
}

// resolve fills in what has a default.
func (f *haFlags) resolve() (err error) {
	o := f.options
	if len(f.addresses) == 0 {
		return nil
	}
	if o.Identity == "" {
		if o.Identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("--ha.identity: %w", err)
		}
	}
	others := slices.DeleteFunc(slices.Clone(f.addresses), func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		return err == nil && (host == o.Identity || strings.HasPrefix(host, o.Identity+"."))
	})
	if len(others) != 1 {
		return fmt.Errorf("--ha.peer-address: %q, of which %q are not this coordinator's (--ha.identity %s), want one", f.addresses, others, o.Identity)
	}
	o.PeerAddress = others[0]
	if o.PeerServerName, err = client.ServerNameFor(o.PeerAddress, o.PeerServerName); err != nil {
		return fmt.Errorf("--ha.peer-address: %w", err)
	}
	return nil
}

// open prepares the requests for the lease, if there is one, and returns the certificates that they use.
func (f *haFlags) open() ([]pki.Source, error) {
	o := f.options
	if !o.Paired() || o.Mode != coordinator.ModeLease {
		return nil, nil
	}
	if f.namespace == "" {
		b, err := os.ReadFile(namespaceFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("--ha.lease-namespace: missing, and this is no pod of Kubernetes")
		}
		if err != nil {
			return nil, fmt.Errorf("--ha.lease-namespace: %w", err)
		}
		f.namespace = strings.TrimSpace(string(b))
	}
	api, err := kubeapi.Open(f.kubeconfig, "graylink-coordinator")
	if err != nil {
		return nil, fmt.Errorf("--ha.mode: %w", err)
	}
	started := time.Now()
	o.Lease = kubernetesLease{lease.New(api, f.namespace, f.name, o.Identity, func() time.Duration { return time.Since(started) })}
	return []pki.Source{api}, nil
}

// kubernetesLease is a Lease of Kubernetes.
type kubernetesLease struct{ lease *lease.Lease }

// Hold implements coordinator.Lease.
func (l kubernetesLease) Hold(ctx context.Context, q coordinator.LeaseRequest) (coordinator.LeaseState, error) {
	s, err := l.lease.Hold(ctx, lease.Request(q))
	return coordinator.LeaseState(s), err
}

// Release implements coordinator.Lease.
func (l kubernetesLease) Release(ctx context.Context) error { return l.lease.Release(ctx) }
