package maintenance

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	cordons = `{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":"more"},"items":[
 {"metadata":{"name":"h1"},"spec":{"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule","timeAdded":"2026-11-22T02:00:00Z"}]}},
 {"metadata":{"name":"h2"},"spec":{"taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}]}}]}`
	cordonsMore = `{"kind":"NodeList","metadata":{},"items":[
 {"metadata":{"name":"h2.example.org"},"spec":{"unschedulable":true}},
 {"metadata":{"name":"elsewhere"},"spec":{"unschedulable":true}},
 {"metadata":{"name":"leaf1:up1"},"spec":{"unschedulable":true}}]}`
)

func TestCordons(t *testing.T) {
	first, second := cordons, cordonsMore
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/k8s/api/v1/nodes" || q.Get("limit") == "" {
			t.Errorf("asked %s", r.URL)
		}
		answer := first
		if q.Get("continue") == "more" {
			answer = second
		}
		if answer == "" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer srv.Close()
	r := NewRegister(graph(t))
	k := &Kubernetes{Client: srv.Client(), URL: srv.URL + "/k8s/"}
	if err := UpdateSource(t.Context(), r, k, now); err != nil {
		t.Fatal(err)
	}
	elements := func() (out []string) {
		for _, w := range r.CurrentWindows(now) {
			out = append(out, w.Element)
		}
		return out
	}
	if got := elements(); !slices.Equal(got, []string{"h1", "h2"}) {
		t.Fatalf("under maintenance: %v", got)
	}
	w := r.CurrentWindows(now)[0]
	if !w.From.Equal(time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)) || !w.Until.IsZero() || w.Source != SourceKubernetes {
		t.Errorf("%+v", w)
	}
	// Half of the answer is none: what was known stays.
	for _, wrong := range []string{"", "{", `{"kind":"Status"}`} {
		if second = wrong; UpdateSource(t.Context(), r, k, now) == nil || len(elements()) != 2 {
			t.Errorf("%q: under maintenance: %v", wrong, elements())
		}
	}
	// Uncordoned is over.
	first = `{"kind":"NodeList","items":[{"metadata":{"name":"h1"},"spec":{}}]}`
	if err := UpdateSource(t.Context(), r, k, now); err != nil || len(elements()) != 0 {
		t.Errorf("%v: under maintenance: %v", err, elements())
	}
	// A server that has always one more page ends in an error.
	first = strings.Replace(cordonsMore, `"metadata":{},`, `"metadata":{"continue":"more"},`, 1)
	second = first
	if err := UpdateSource(t.Context(), r, k, now); err == nil {
		t.Error("pages without an end are read")
	}
}

func FuzzNodes(f *testing.F) {
	f.Add([]byte(cordons))
	f.Add([]byte(cordonsMore))
	r := NewRegister(graph(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		ws, _, err := parseNodes(b, r.CheckElement)
		if err != nil && ws != nil {
			t.Errorf("%v, %v", ws, err)
		}
		for _, w := range ws {
			if r.CheckElement(w.Element) != nil {
				t.Errorf("%+v", w)
			}
		}
	})
}
