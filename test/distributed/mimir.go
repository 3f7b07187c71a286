package distributed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Names of the processes of Mimir.
var (
	ingesters    = []string{"ingester-1", "ingester-2", "ingester-3"}
	distributors = []string{"distributor-1", "distributor-2"}
)

const reader = "reader"

// Tenant is the tenant of Mimir that the files of deploy/prometheus/mimir name.
const Tenant = "graylink"

// TenantHeader is the HTTP header by which Mimir knows the tenant of a request.
const TenantHeader = "X-Scope-OrgID"

// overridesFile has the limits of tenants, which Mimir reads again every ten seconds.
const overridesFile = "overrides.yml"

// StartMimir starts two Prometheus, a distributor for each, three ingesters that keep three copies, and one process for
// queries and rules, uploads the rules of the directory graylink, and waits until all are ready. It fails if one is not
// within a minute. overrides are the limits of tenants. Close stops those that were started also then.
func StartMimir(ctx context.Context, o Options, overrides string) (*Engine, error) {
	e := newEngine(o, ingesters)
	e.query = e.MimirAddress(reader) + "/prometheus"
	e.ruler = e.query
	if err := errors.Join(e.SetOverrides(overrides), e.writeMimir()); err != nil {
		return e, err
	}
	if err := e.startGroups(ctx, ingesters, distributors, []string{reader}); err != nil {
		return e, err
	}
	if err := e.uploadRules(ctx); err != nil {
		return e, err
	}
	return e, e.startGroups(ctx, Replicas)
}

// MimirAddress returns the address of the HTTP API of a process of Mimir.
func (e *Engine) MimirAddress(name string) string { return e.addressFor(name + " http") }

// SetOverrides writes the limits of tenants, which Mimir reads within ten seconds.
func (e *Engine) SetOverrides(text string) error {
	name := filepath.Join(e.o.Dir, overridesFile)
	if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// writeMimir writes the files of all processes. Each has a copy of mimir.yml with its name and its ports.
func (e *Engine) writeMimir() error {
	var errs []error
	mimir := func(name, target string) {
		errs = append(errs, e.install("mimir.yml", name+".yml", `"127.0.0.1:7946"`, `"`+e.addressFor(ingesters[0]+" gossip")+`"`,
			"mimir-1", name, "8080", e.portFor(name+" http"), "9095", e.portFor(name+" grpc"), "7946", e.portFor(name+" gossip")))
		e.add(name, Mimir, "http://"+e.MimirAddress(name)+"/ready", "-config.file="+name+".yml", "-target="+target)
	}
	for _, name := range ingesters {
		mimir(name, "ingester")
	}
	for _, name := range distributors {
		mimir(name, "distributor")
	}
	mimir(reader, "query-frontend,query-scheduler,querier,store-gateway,compactor,ruler")
	var all []string
	for _, name := range slices.Concat(ingesters, distributors, []string{reader}) {
		all = append(all, strconv.Quote(e.MimirAddress(name)))
	}
	for i, name := range Replicas {
		errs = append(errs, e.install("prometheus.yml", name+".yml", "127.0.0.1:9090", e.ReplicaAddress(name), "prometheus-1", name,
			`"127.0.0.1:8080"`, strings.Join(all, ", "), "127.0.0.1:8080", e.MimirAddress(distributors[i])))
		e.addPrometheus(name)
	}
	return errors.Join(errs...)
}

// uploadRules gives the tenant's rules to the ruler, group by group, as mimirtool does.
func (e *Engine) uploadRules(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(e.o.Dir, "graylink", "*.rules.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var rules struct {
			Groups []yaml.Node
		}
		if err := yaml.Unmarshal(b, &rules); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		namespace := strings.TrimSuffix(filepath.Base(file), ".rules.yaml")
		for i := range rules.Groups {
			group, err := yaml.Marshal(&rules.Groups[i])
			if err != nil {
				return err
			}
			if err := e.uploadGroup(ctx, namespace, group); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

// uploadGroup gives one group to the ruler. It fails with Mimir's reason if the group is refused.
func (e *Engine) uploadGroup(ctx context.Context, namespace string, group []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.ruler+"/config/v1/rules/"+url.PathEscape(namespace), bytes.NewReader(group))
	if err != nil {
		return err
	}
	r.Header.Set(TenantHeader, Tenant)
	r.Header.Set("Content-Type", "application/yaml")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		b, err := io.ReadAll(resp.Body)
		return errors.Join(fmt.Errorf("a group is refused: %s: %s", resp.Status, b), err)
	}
	return nil
}
