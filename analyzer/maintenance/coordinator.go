package maintenance

import (
	"context"
	"errors"
	"net/http"
)

// Keeper is a coordinator that keeps the windows of the API for all analyzers. Its errors are KeeperErrors.
type Keeper interface {
	// Windows returns all windows. It returns nil and no error if they are those of the last call.
	Windows(ctx context.Context) ([]Window, error)
	// OpenWindow makes a window, and returns it with its identifier.
	OpenWindow(ctx context.Context, w Window) (Window, error)
	// EndWindow ends a window now, on behalf of somebody.
	EndWindow(ctx context.Context, id, by string) error
}

// KeeperError is why a coordinator does not do what it was asked for: a status of HTTP and a text.
type KeeperError struct {
	Status int
	Text   string
}

func (e *KeeperError) Error() string { return e.Text }

// statusOf returns the status of HTTP for an error: that of a Keeper, or else that of an invalid request.
func statusOf(err error) int {
	var k *KeeperError
	if errors.As(err, &k) {
		return k.Status
	}
	return http.StatusBadRequest
}

// Coordinator is a source of windows: those that a coordinator keeps.
type Coordinator struct{ Keeper }

// Name implements Source.
func (Coordinator) Name() string { return SourceCoordinator }

// ReadWindows implements Source. Windows of elements that the topology does not have are kept, so that all analyzers have
// the same ones.
func (c Coordinator) ReadWindows(ctx context.Context, _ *Register) ([]Window, error) {
	return c.Windows(ctx)
}
