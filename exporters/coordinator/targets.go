package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/plainjson"
)

// targetGroup represents a target group of Prometheus' service discovery, by HTTP or by file.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func targetGroups(targets []coordinator.Target) []targetGroup {
	out := make([]targetGroup, len(targets))
	for i, t := range targets {
		out[i] = targetGroup{[]string{t.Address}, map[string]string{"__scheme__": t.Scheme, "__meta_graylink_node": t.Node,
			"__meta_graylink_version": t.Software, "__meta_graylink_connected": fmt.Sprint(t.Connected)}}
	}
	return out
}

// writeTargetsEvery is the time between two checks whether the file of targets has to change.
const writeTargetsEvery = 2 * time.Second

// TargetFile keeps a file of targets for Prometheus' file_sd_configs, with what GET /api/v1/targets answers.
type TargetFile struct {
	path    string
	targets func() ([]coordinator.Target, bool)
	log     *slog.Logger
	written []byte // content of the file; nil if it is not known
	failing bool   // the last write failed
}

// CheckTargetFile returns an error if a file of targets would not be read by Prometheus.
func CheckTargetFile(path string) error {
	if !strings.HasSuffix(path, ".json") {
		return fmt.Errorf("--sd.file %q: want a name that ends in .json, since Prometheus reads no other", path)
	}
	return nil
}

// NewTargetFile returns what keeps a file with the targets of a coordinator. An existing file stays until there are other
// targets.
func NewTargetFile(path string, c *coordinator.Coordinator, log *slog.Logger) *TargetFile {
	f := &TargetFile{path: path, targets: c.Targets, log: log}
	b, err := os.ReadFile(path)
	if err == nil {
		f.written = b
	} else if !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read the file of targets, which will be replaced", "file", path, "err", err)
	}
	return f
}

// Run keeps the file up to date until ctx ends.
func (f *TargetFile) Run(ctx context.Context) {
	tick := time.NewTicker(writeTargetsEvery)
	defer tick.Stop()
	for {
		f.update()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update replaces the file if the targets differ from its content. While the registry is not whole it does nothing, so
// that Prometheus keeps the targets of the last run. A failure is logged once, and tried again.
func (f *TargetFile) update() {
	targets, whole := f.targets()
	if !whole {
		return
	}
	var b bytes.Buffer
	err := plainjson.NewEncoder(&b).Encode(targetGroups(targets))
	if err == nil && f.written != nil && bytes.Equal(b.Bytes(), f.written) {
		return
	}
	if err == nil {
		err = durable.WritePublicFile(f.path, b.Bytes())
	}
	switch {
	case err == nil && f.failing:
		f.log.Info("the file of targets is written again", "file", f.path)
	case err != nil && !f.failing:
		f.log.Error("cannot write the file of targets: Prometheus keeps the old ones", "file", f.path, "err", err)
	}
	if f.failing = err != nil; !f.failing {
		f.written = b.Bytes()
	}
}
