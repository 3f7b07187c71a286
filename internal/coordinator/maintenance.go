package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Limits of maintenance windows.
const (
	mostWindows   = 4000
	mostReason    = 1000                 // octets
	windowLongest = 366 * 24 * time.Hour // from now to its end
	// windowKept is how long a window is kept after its end, so that an analyzer that starts knows which evidence it spoils:
	// longer than any window of evidence.
	windowKept = time.Hour
	// writtenWithin bounds the time in which a standby that follows has to write a window.
	writtenWithin = 5 * time.Second
)

// maintenanceWindow is a time in which an element is under maintenance.
type maintenanceWindow struct {
	ID      string    `json:"id"`
	Element string    `json:"element"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Relearn bool      `json:"relearn,omitempty"`
}

// validate returns an error that begins with the field if a window is invalid. Whether there is such an element is not
// checked, since the topology may have lost it.
func (w *maintenanceWindow) validate() error {
	for _, f := range []struct {
		field, text string
		most        int
	}{{"id", w.ID, agentapi.MaxName}, {"element", w.Element, 2*agentapi.MaxName + len("--")}, {"by", w.By, agentapi.MaxName}, {"reason", w.Reason, mostReason}} {
		if err := checkTextUpTo(f.field, f.text, f.most); err != nil {
			return err
		}
		if f.text == "" && f.field != "reason" {
			return fmt.Errorf("%s: missing", f.field)
		}
	}
	switch {
	case w.From.IsZero() || w.Until.IsZero():
		return errors.New("from, until: missing: every window has a beginning and an end")
	case w.Until.Before(w.From):
		return fmt.Errorf("until: %s is before from, %s", w.Until.Format(time.RFC3339), w.From.Format(time.RFC3339))
	}
	return nil
}

// identify gives a window its identifier, which is the same for a request that is repeated.
func (w *maintenanceWindow) identify() {
	sum := sha256.Sum256([]byte(w.Element + "\x00" + w.By + "\x00" + w.From.UTC().Format(time.RFC3339Nano) + "\x00" + w.Reason))
	w.ID = hex.EncodeToString(sum[:8])
}

func (w *maintenanceWindow) toMessage() *agentapi.MaintenanceWindow {
	return &agentapi.MaintenanceWindow{Id: w.ID, Element: w.Element, FromUnixNs: w.From.UnixNano(), UntilUnixNs: w.Until.UnixNano(), By: w.By, Reason: w.Reason, Relearn: w.Relearn}
}

func windowOf(m *agentapi.MaintenanceWindow) maintenanceWindow {
	w := maintenanceWindow{Element: m.GetElement(), By: m.GetBy(), Reason: m.GetReason(), Relearn: m.GetRelearn()}
	if ns := m.GetFromUnixNs(); ns != 0 {
		w.From = time.Unix(0, ns).UTC()
	}
	if ns := m.GetUntilUnixNs(); ns != 0 {
		w.Until = time.Unix(0, ns).UTC()
	}
	return w
}

// maintenanceBook holds the windows that analyzers have made. It needs the coordinator's mu. The lists are replaced, never
// changed.
type maintenanceBook struct {
	stored []maintenanceWindow // part of the state that is written, sorted by identifier
	served []maintenanceWindow // those that analyzers get: once they are written
	tag    []byte              // of served
}

// newMaintenanceBook returns the windows of a state, which is nil if there is none.
func newMaintenanceBook(s *state) maintenanceBook {
	var b maintenanceBook
	if s != nil {
		b.stored = s.Maintenance
	}
	b.serve()
	return b
}

// serve lets analyzers have what is stored.
func (b *maintenanceBook) serve() {
	b.served = b.stored
	text, err := json.Marshal(b.served)
	if err != nil {
		panic(err) // texts and valid times can be encoded
	}
	sum := sha256.Sum256(text)
	b.tag = sum[:16]
}

// countOpen returns the number of windows that have not ended.
func (b *maintenanceBook) countOpen(wall time.Time) (n int) {
	for i := range b.served {
		if b.served[i].Until.After(wall) {
			n++
		}
	}
	return n
}

// errWindow is the reason why a window is not made, or not ended.
type errWindow struct {
	code codes.Code
	text string
}

func (e errWindow) Error() string { return e.text }

// withWindow returns windows and one more, which replaces an equal one.
func withWindow(all []maintenanceWindow, w maintenanceWindow, wall time.Time) ([]maintenanceWindow, error) {
	out := slices.DeleteFunc(slices.Clone(all), func(o maintenanceWindow) bool { return o.ID == w.ID || wall.Sub(o.Until) > windowKept })
	if len(out) >= mostWindows {
		return nil, errWindow{codes.ResourceExhausted, fmt.Sprintf("there are %d windows already", len(out))}
	}
	out = append(out, w)
	slices.SortFunc(out, func(a, b maintenanceWindow) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// withoutWindow returns windows of which one ends now. One that has not begun is removed.
func withoutWindow(all []maintenanceWindow, id string, wall time.Time) ([]maintenanceWindow, error) {
	i := slices.IndexFunc(all, func(w maintenanceWindow) bool { return w.ID == id && w.Until.After(wall) })
	switch {
	case i < 0:
		return nil, errWindow{codes.NotFound, "there is no such window, or it has ended"}
	case !all[i].From.Before(wall):
		return slices.Delete(slices.Clone(all), i, i+1), nil
	}
	out := slices.Clone(all)
	out[i].Until = wall.UTC()
	return out, nil
}

// changeWindows replaces the windows. It returns once they are written, also by a standby that follows. If that fails,
// nothing has changed. The error is an errWindow, or a gRPC status of a coordinator that does not lead.
func (c *Coordinator) changeWindows(ctx context.Context, change func(all []maintenanceWindow, wall time.Time) ([]maintenanceWindow, error)) error {
	c.windowsMu.Lock()
	defer c.windowsMu.Unlock()
	if err := c.requireLeader(); err != nil {
		return err
	}
	c.mu.Lock()
	before := c.maintenance.stored
	c.mu.Unlock()
	after, err := change(before, c.opts.Clock.WallTime())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	if err := c.writeWindows(ctx, after); err != nil {
		_ = c.storeWindows(before) // it is logged and counted, and tried again
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leadership.leads {
		return errNotLeader(c.leaderAddress())
	}
	c.maintenance.serve()
	return nil
}

// writeWindows writes windows, and waits for the standbys that follow.
func (c *Coordinator) writeWindows(ctx context.Context, windows []maintenanceWindow) error {
	if err := c.storeWindows(windows); err != nil {
		return errWindow{codes.Unavailable, "the coordinator cannot write its state now"}
	}
	_, sequence := c.replication.latest()
	if err := c.replication.waitWritten(ctx, sequence); err != nil {
		return errWindow{codes.Unavailable, "the standby coordinator has not written the window in time"}
	}
	return nil
}

// storeWindows writes windows as a part of the state, unless this coordinator does not lead any more.
func (c *Coordinator) storeWindows(windows []maintenanceWindow) error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	c.mu.Lock()
	if !c.leadership.leads {
		defer c.mu.Unlock()
		return errNotLeader(c.leaderAddress())
	}
	c.maintenance.stored = windows
	c.mu.Unlock()
	return c.saveState()
}

// openWindow makes a window of a topology's element.
func (c *Coordinator) openWindow(ctx context.Context, w maintenanceWindow) (maintenanceWindow, error) {
	c.mu.Lock()
	graph, wall := c.topology.graph, c.opts.Clock.WallTime()
	c.mu.Unlock()
	w.identify()
	if err := w.validate(); err != nil {
		return w, errWindow{codes.InvalidArgument, "field " + err.Error()}
	}
	if err := graph.CheckElement(w.Element); err != nil {
		return w, errWindow{codes.InvalidArgument, "field element: " + err.Error()}
	}
	if !w.Until.After(wall) || !w.Until.After(w.From) {
		return w, errWindow{codes.InvalidArgument, fmt.Sprintf("field until: %s is not after the beginning and after now", w.Until.Format(time.RFC3339))}
	}
	if w.Until.Sub(wall) > windowLongest {
		return w, errWindow{codes.InvalidArgument, fmt.Sprintf("field until: %s is more than a year from now", w.Until.Format(time.RFC3339))}
	}
	err := c.changeWindows(ctx, func(all []maintenanceWindow, wall time.Time) ([]maintenanceWindow, error) {
		return withWindow(all, w, wall)
	})
	return w, err
}

// endWindow ends a window now.
func (c *Coordinator) endWindow(ctx context.Context, id string) error {
	return c.changeWindows(ctx, func(all []maintenanceWindow, wall time.Time) ([]maintenanceWindow, error) {
		return withoutWindow(all, id, wall)
	})
}

// maintenanceServer answers analyzers.
type maintenanceServer struct {
	*Server
	agentapi.UnimplementedMaintenanceServer
}

// maintenanceClient returns the name of the client's certificate, or a gRPC status unless it may keep windows.
func (s maintenanceServer) maintenanceClient(ctx context.Context) (string, error) {
	id, err := s.clientIdentity(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(id.names, func(n string) bool { return slices.Contains(s.c.opts.MaintenanceClients, n) })
	if i < 0 {
		s.c.counters.addWindow(windowDenied)
		return "", status.Errorf(codes.PermissionDenied, "the certificate is for %q, and --maintenance.clients has none of these names", id.names)
	}
	return id.names[i], nil
}

// ListWindows implements agentapi.MaintenanceServer.
func (s maintenanceServer) ListWindows(ctx context.Context, q *agentapi.WindowsRequest) (*agentapi.WindowsAnswer, error) {
	if _, err := s.maintenanceClient(ctx); err != nil {
		return nil, err
	}
	c := s.c
	c.mu.Lock()
	book, leads, leader := c.maintenance, c.leadership.leads, c.leaderAddress()
	c.mu.Unlock()
	if !leads {
		return nil, errNotLeader(leader)
	}
	a := &agentapi.WindowsAnswer{Tag: book.tag, Unchanged: bytes.Equal(q.GetTag(), book.tag)}
	if a.Unchanged {
		return a, nil
	}
	for i := range book.served {
		a.Windows = append(a.Windows, book.served[i].toMessage())
	}
	return a, nil
}

// OpenWindow implements agentapi.MaintenanceServer.
func (s maintenanceServer) OpenWindow(ctx context.Context, m *agentapi.MaintenanceWindow) (*agentapi.MaintenanceWindow, error) {
	client, err := s.maintenanceClient(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.c.openWindow(ctx, windowOf(m))
	if err := s.finish(err); err != nil {
		return nil, err
	}
	s.c.log.Info("maintenance window made", "id", w.ID, "element", w.Element, "by", w.By, "client", client, "from", w.From, "until", w.Until)
	return w.toMessage(), nil
}

// EndWindow implements agentapi.MaintenanceServer.
func (s maintenanceServer) EndWindow(ctx context.Context, q *agentapi.EndWindowRequest) (*agentapi.EndWindowAnswer, error) {
	client, err := s.maintenanceClient(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkText("id", q.GetId()), checkText("by", q.GetBy())); err != nil {
		return nil, s.finish(errWindow{codes.InvalidArgument, "field " + err.Error()})
	}
	if err := s.finish(s.c.endWindow(ctx, q.GetId())); err != nil {
		return nil, err
	}
	s.c.log.Info("maintenance window ended", "id", q.GetId(), "by", q.GetBy(), "client", client)
	return &agentapi.EndWindowAnswer{}, nil
}

// finish counts the result of a request, and returns the gRPC status of its error.
func (s maintenanceServer) finish(err error) error {
	var w errWindow
	switch {
	case err == nil:
		s.c.counters.addWindow(windowDone)
		return nil
	case !errors.As(err, &w):
		s.c.counters.addWindow(windowStandby)
		return err
	case w.code == codes.Unavailable:
		s.c.counters.addWindow(windowUnwritten)
	default:
		s.c.counters.addWindow(windowRefused)
	}
	return status.Error(w.code, w.text)
}
