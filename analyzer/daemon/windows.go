package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
)

// windowKeeper keeps maintenance windows at a coordinator over gRPC. It implements maintenance.Keeper. Windows must not be
// called by several goroutines at once.
type windowKeeper struct {
	client *client.Windows
	tag    []byte // of the windows that the last call of Windows returned
}

// newWindowKeeper returns what keeps windows at the coordinator of a configuration. It fails if the certificate files cannot
// be used.
func (a *AgentPort) newWindowKeeper(log *slog.Logger) (*windowKeeper, error) {
	keeper, err := a.openCertificates(log)
	if err != nil {
		return nil, err
	}
	c, err := client.NewWindows(a.addresses(), a.ServerName, keeper)
	if err != nil {
		return nil, err
	}
	return &windowKeeper{client: c}, nil
}

// Windows implements maintenance.Keeper.
func (k *windowKeeper) Windows(ctx context.Context) ([]maintenance.Window, error) {
	a, err := k.client.List(ctx, k.tag)
	if err != nil {
		return nil, keeperError(err)
	}
	if a.GetUnchanged() {
		return nil, nil
	}
	k.tag = a.GetTag()
	out := make([]maintenance.Window, 0, len(a.GetWindows()))
	for _, m := range a.GetWindows() {
		out = append(out, windowOf(m))
	}
	return out, nil
}

// OpenWindow implements maintenance.Keeper.
func (k *windowKeeper) OpenWindow(ctx context.Context, w maintenance.Window) (maintenance.Window, error) {
	m, err := k.client.Open(ctx, &agentapi.MaintenanceWindow{Element: w.Element, FromUnixNs: w.From.UnixNano(), UntilUnixNs: w.Until.UnixNano(),
		By: w.By, Reason: w.Reason, Relearn: w.Relearn})
	if err != nil {
		return w, keeperError(err)
	}
	return windowOf(m), nil
}

// EndWindow implements maintenance.Keeper.
func (k *windowKeeper) EndWindow(ctx context.Context, id, by string) error {
	if err := k.client.End(ctx, id, by); err != nil {
		return keeperError(err)
	}
	return nil
}

func windowOf(m *agentapi.MaintenanceWindow) maintenance.Window {
	return maintenance.Window{ID: m.GetId(), Element: m.GetElement(), From: time.Unix(0, m.GetFromUnixNs()).UTC(), Until: time.Unix(0, m.GetUntilUnixNs()).UTC(),
		By: m.GetBy(), Reason: m.GetReason(), Relearn: m.GetRelearn(), Source: maintenance.SourceCoordinator}
}

// keeperError returns what the API answers for the gRPC status of a coordinator.
func keeperError(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.ResourceExhausted:
		return &maintenance.KeeperError{Status: http.StatusBadRequest, Text: s.Message()}
	case codes.NotFound:
		return &maintenance.KeeperError{Status: http.StatusNotFound, Text: s.Message()}
	case codes.Unimplemented:
		return &maintenance.KeeperError{Status: http.StatusServiceUnavailable, Text: "the coordinator is of a version that keeps no maintenance windows"}
	case codes.PermissionDenied:
		return &maintenance.KeeperError{Status: http.StatusServiceUnavailable, Text: "the coordinator lets this analyzer keep no maintenance windows: " + s.Message()}
	}
	return &maintenance.KeeperError{Status: http.StatusServiceUnavailable, Text: "no coordinator that leads has confirmed: " + s.Message()}
}
