// Package lease decides by a Lease of Kubernetes (coordination.k8s.io/v1) which of several processes leads. Rules:
//
//  1. A holder keeps the lease by renewing it. The lease is free when its holder has released it, or when this process has
//     seen no renewal for the lease's duration by its own monotonic clock: clocks of hosts are not compared.
//  2. Every change of the holder, and every one by force, gives the lease a greater epoch, which is written with it in one
//     request. The API server refuses a request that is based on an older version of the lease, so that no two processes
//     get one epoch.
//  3. A process that has the state of a smaller epoch than that of the lease does not take it: the last holder has a newer
//     one. But a process that took it, and ended before it wrote the epoch, may hold it again.
package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/kubeapi"
)

// Duration is how long a lease is held after its last renewal.
const Duration = 5 * time.Second

// Annotations of the lease.
const (
	epochAnnotation = "graylink.io/epoch" // the epoch of the lease's holder, in decimal
	noteAnnotation  = "graylink.io/note"  // the text that the last holder wrote
)

// State is what a request found.
type State struct {
	Held   bool   // by this process
	Holder string // empty if there is none
	Epoch  uint64 // of the holder, or of the last one; 0 if there was none
}

// Request is a request for the lease.
type Request struct {
	Epoch       uint64 // of the state that the process has; 0 if it has none
	AtLeast     uint64 // lower limit of the epoch of a lease that is taken
	Take, Force bool   // take it if it is free, or in any case
}

// Lease is one process's view of the lease. Its methods may be called from any goroutine, one at a time.
type Lease struct {
	api             *kubeapi.Client
	namespace, name string
	identity        string
	mono            func() time.Duration

	seenVersion string        // version of the lease that was seen last
	seenAt      time.Duration // when that version was seen first
}

// New returns a lease of a namespace. identity is the name of this process, which no other has. mono returns a monotonic
// time.
func New(api *kubeapi.Client, namespace, name, identity string, mono func() time.Duration) *Lease {
	return &Lease{api: api, namespace: namespace, name: name, identity: identity, mono: mono}
}

// object is a Lease as the API server has it, as far as it is used here.
type object struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type spec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int    `json:"leaseTransitions"`
}

// timeFormat is that of MicroTime in Kubernetes.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// epoch returns the epoch of a lease, 0 if it has none, and an error if it cannot be read.
func (o *object) epoch() (uint64, error) {
	text, ok := o.Metadata.Annotations[epochAnnotation]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 62)
	if err != nil {
		return 0, fmt.Errorf("lease %s/%s: annotation %s: %q, want a number below 2^62", o.Metadata.Namespace, o.Metadata.Name, epochAnnotation, text)
	}
	return n, nil
}

func (l *Lease) path(more ...string) []string {
	return append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", l.namespace, "leases"}, more...)
}

// Hold keeps the lease, or takes it as the request says. It returns what is so afterwards, and an error if the API server
// did not answer, or if another process was faster.
func (l *Lease) Hold(ctx context.Context, q Request) (State, error) {
	s, _, err := l.HoldWithNote(ctx, q, nil)
	return s, err
}

// HoldWithNote does what Hold does, and replaces the text of the lease in the same request that keeps or takes it. Nil keeps the
// text. It returns the text as it is afterwards. Kubernetes limits all annotations of an object to 256 KiB.
func (l *Lease) HoldWithNote(ctx context.Context, q Request, replace *string) (s State, note string, err error) {
	var o object
	err = l.api.SendRequest(ctx, http.MethodGet, kubeapi.TypeJSON, nil, &o, l.path(l.name)...)
	missing := kubeapi.HasCode(err, http.StatusNotFound)
	if err != nil && !missing {
		return State{}, "", err
	}
	epoch, err := o.epoch()
	if err != nil {
		return State{}, "", err
	}
	if o.Metadata.ResourceVersion != l.seenVersion {
		l.seenVersion, l.seenAt = o.Metadata.ResourceVersion, l.mono()
	}
	holder := o.Spec.HolderIdentity
	own := holder == l.identity && q.Epoch != 0 && q.Epoch+1 >= epoch
	free := holder == "" || l.mono()-l.seenAt >= time.Duration(max(o.Spec.LeaseDurationSeconds, 1))*time.Second
	take := q.Force || q.Take && free && !own && q.Epoch >= epoch
	note = o.Metadata.Annotations[noteAnnotation]
	if !own && !take {
		return State{Holder: holder, Epoch: epoch}, note, nil
	}
	now := time.Now().UTC().Format(timeFormat)
	next := object{Metadata: metadata{ResourceVersion: o.Metadata.ResourceVersion, Annotations: map[string]string{}}, Spec: o.Spec}
	if replace != nil {
		note = *replace
		next.Metadata.Annotations[noteAnnotation] = note
	}
	if take {
		epoch = max(epoch+1, q.Epoch+1, q.AtLeast)
		next.Metadata.Annotations[epochAnnotation] = strconv.FormatUint(epoch, 10)
		next.Spec.AcquireTime = now
		if !missing {
			next.Spec.LeaseTransitions++
		}
	}
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = l.identity, int(Duration/time.Second), now
	if err := l.write(ctx, &next, missing); err != nil {
		return State{}, "", err
	}
	return State{Held: true, Holder: l.identity, Epoch: epoch}, note, nil
}

// write creates the lease, or changes it if it still has the version of o.
func (l *Lease) write(ctx context.Context, o *object, create bool) error {
	if create {
		o.APIVersion, o.Kind, o.Metadata.Name, o.Metadata.Namespace = "coordination.k8s.io/v1", "Lease", l.name, l.namespace
		return l.api.SendRequest(ctx, http.MethodPost, kubeapi.TypeJSON, o, nil, l.path()...)
	}
	return l.api.SendRequest(ctx, http.MethodPatch, kubeapi.TypePatch, o, nil, l.path(l.name)...)
}

// Release ends the holding of the lease by this process, so that another one can take it at once.
func (l *Lease) Release(ctx context.Context) error {
	var o object
	if err := l.api.SendRequest(ctx, http.MethodGet, kubeapi.TypeJSON, nil, &o, l.path(l.name)...); err != nil {
		return err
	}
	if o.Spec.HolderIdentity != l.identity {
		return errors.New("the lease is not held by this process")
	}
	o.Metadata, o.Spec.HolderIdentity = metadata{ResourceVersion: o.Metadata.ResourceVersion}, ""
	return l.write(ctx, &object{Metadata: o.Metadata, Spec: o.Spec}, false)
}
