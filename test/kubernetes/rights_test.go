//go:build kubernetes

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nichealth"
)

// right is a verb of a rule of one of the chart's roles.
type right struct {
	path  string // of the role
	rules []any  // of the role
	rule  int    // index of the rule
	verb  string
}

// rightsByName returns the rights that the chart's roles give: "verb resources of role".
func (k *cluster) rightsByName() map[string]right {
	k.t.Helper()
	out := map[string]right{}
	for _, path := range []string{"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", "/apis/rbac.authorization.k8s.io/v1/namespaces/graylink/roles"} {
		items, _ := k.do("GET", path+"?labelSelector=app.kubernetes.io/instance%3Dgraylink", nil)["items"].([]any)
		for _, item := range items {
			role := item.(map[string]any)["metadata"].(map[string]any)["name"].(string)
			rules := item.(map[string]any)["rules"].([]any)
			for i, r := range rules {
				rule := r.(map[string]any)
				resources := rule["resources"].([]any)
				if len(resources) != 1 || len(rule["apiGroups"].([]any)) != 1 {
					k.t.Errorf("%s: a rule for %v, want one resource in each rule", role, resources)
				}
				for _, verb := range rule["verbs"].([]any) {
					out[fmt.Sprintf("%v %v of %s", verb, resources[0], role)] = right{path + "/" + role, rules, i, verb.(string)}
				}
			}
		}
	}
	return out
}

// set writes the role with or without the verb.
func (k *cluster) set(r right, given bool) {
	k.t.Helper()
	rules := slices.Clone(r.rules)
	if !given {
		rule := maps.Clone(rules[r.rule].(map[string]any))
		rule["verbs"] = slices.DeleteFunc(slices.Clone(rule["verbs"].([]any)), func(v any) bool { return v == r.verb })
		rules[r.rule] = rule
		// A rule has at least one verb.
		if len(rule["verbs"].([]any)) == 0 {
			rules = slices.Delete(rules, r.rule, r.rule+1)
		}
	}
	role := k.do("GET", r.path, nil)
	role["rules"] = rules
	k.do("PUT", r.path, role)
	time.Sleep(time.Second) // the authorizer watches the roles
}

// rights removes every verb of the chart's roles in turn, and checks that what needs it fails, with the programs' own
// requests. A verb that nothing needs, and one that is missing, are errors.
func (k *cluster) rights() {
	address, ca := k.startCoordinator()
	node := k.write("node.kubeconfig", k.kubeconfig(k.token("graylink", "graylink-node", "", "", "")))
	pod := k.token("graylink", "graylink-node", "graylink-coordinator", "graylink-rights", k.pod("graylink", "graylink-rights", "graylink-node", "h1"))
	k.do("POST", "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "h4"}, "spec": map[string]any{"unschedulable": true}})
	needs := map[string]func() error{
		"create tokenreviews of graylink-coordinator-graylink": func() error {
			if out := k.enrollNode("h1", pod, address, ca); !strings.Contains(out, "certificate obtained") {
				return errors.New(out)
			}
			return nil
		},
		"create leases of graylink-coordinator": func() error {
			if code, answer, err := k.send("DELETE", leasePath, nil); err != nil || code != 200 && code != 404 {
				return fmt.Errorf("delete the lease: %d %v: %w", code, answer, err)
			}
			return k.holdLease()
		},
		"get leases of graylink-coordinator":                     k.holdLease,
		"patch leases of graylink-coordinator":                   k.holdLease,
		"patch nodes/status of graylink-node-condition-graylink": func() error { return k.report(node).condition },
		"create events of graylink-node-events-graylink":         func() error { return k.report(node).event },
		"patch events of graylink-node-events-graylink":          func() error { return k.report(node).repetition },
		"list pods of graylink-analyzer-graylink":                func() error { return k.follow().listed },
		"watch pods of graylink-analyzer-graylink":               func() error { return k.follow().watched },
		"list nodes of graylink-analyzer-graylink": func() error {
			source := &maintenance.Kubernetes{Client: k.analyzerClient(), URL: k.url}
			windows, err := source.ReadWindows(k.t.Context(), maintenance.NewRegister(k.graph()))
			if err == nil && len(windows) != 1 {
				err = fmt.Errorf("%d windows, want one for the cordoned node", len(windows))
			}
			return err
		},
	}
	given := k.rightsByName()
	if got, want := slices.Sorted(maps.Keys(given)), slices.Sorted(maps.Keys(needs)); !slices.Equal(got, want) {
		k.t.Fatalf("the chart's roles give\n%s\nand the programs need\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	suite := k.t
	for _, name := range slices.Sorted(maps.Keys(given)) {
		suite.Run(name, func(t *testing.T) {
			k.t = t
			if err := needs[name](); err != nil {
				t.Errorf("with all rights: %v", err)
			}
			k.set(given[name], false)
			if err := needs[name](); err == nil {
				t.Error("nothing fails without it")
			} else {
				t.Logf("without it: %.200v", err)
			}
			k.set(given[name], true)
		})
	}
	k.t = suite
}

// reported is what became of the requests of a node agent: nil where they succeeded.
type reported struct{ condition, event, repetition error }

// report runs the part of the node agent that writes the condition and events of h1, with an event that comes twice.
func (k *cluster) report(kubeconfig string) (out reported) {
	k.t.Helper()
	r, err := kubenode.New(kubenode.Config{Node: "h1", Kubeconfig: kubeconfig, State: func() kubenode.State { return kubenode.State{Read: time.Now()} }})
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(k.t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	// outcome waits until so many requests about an object have succeeded, or one more has failed.
	outcome := func(object string, successes uint64) error {
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			requests := r.Stats().Requests
			if requests[kubenode.Request{Object: object, Result: kubenode.ResultOK}] >= successes {
				return nil
			}
			if n := requests[kubenode.Request{Object: object, Result: kubenode.ResultRetry}] + requests[kubenode.Request{Object: object, Result: kubenode.ResultRefused}]; n > 0 {
				return fmt.Errorf("requests about the %s fail", object)
			}
		}
		return fmt.Errorf("the %s is not written in 15 s", object)
	}
	event := nichealth.Event{Agent: nichealth.Agent, Message: "Port: state DOWN", ErrorCode: []string{"state_down"}, EntitiesImpacted: []nichealth.Entity{nichealth.PortEntity("mlx5_0", 1)}, NodeName: "h1"}
	event.GeneratedTimestamp = time.Now()
	r.Offer(event)
	out.event = outcome(kubenode.ObjectEvent, 1)
	if out.repetition = out.event; out.event == nil {
		event.GeneratedTimestamp = time.Now()
		r.Offer(event)
		out.repetition = outcome(kubenode.ObjectEvent, 2)
	}
	out.condition = outcome(kubenode.ObjectCondition, 2)
	return out
}

// followed is what became of the requests of the analyzer's source of jobs: nil where they succeeded.
type followed struct{ listed, watched error }

// follow runs the analyzer's source of jobs, with a pod that is there before and one that comes later.
func (k *cluster) follow() (out followed) {
	k.t.Helper()
	name := fmt.Sprintf("rights-%d", time.Now().UnixNano())
	k.jobPod(name+"-0", name, "h1")
	r := jobs.NewRegister(k.graph())
	source := &jobs.Kubernetes{Client: k.analyzerClient(), URL: k.url}
	ctx, cancel := context.WithCancel(k.t.Context())
	done := make(chan struct{})
	go func() { source.Follow(ctx, r, slog.New(slog.DiscardHandler)); close(done) }()
	defer func() { cancel(); <-done }()
	wait := func(want string) error {
		for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if slices.Contains(placements(r), want) {
				return nil
			}
		}
		return fmt.Errorf("no %q among %q in 6 s", want, placements(r))
	}
	if out.listed = wait("graylink/" + name + " h1/eth1"); out.listed != nil {
		return out
	}
	k.jobPod(name+"-1", name, "h2")
	out.watched = wait("graylink/" + name + " h1/eth1 h2/eth1")
	return out
}
