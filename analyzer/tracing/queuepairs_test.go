package tracing

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestQueuePairs: the list of a node is taken if it is valid and of this node; else the error says what is wrong.
func TestQueuePairs(t *testing.T) {
	const pair = `{"device":"mlx5_0","port":1,"driver":"mlx5_core","lqpn":17,"rqpn":18,"type":"rc","state":"rts","pid":7}`
	for _, x := range []struct {
		answer string
		code   int
		want   string // of the error; empty: there is none
	}{
		{`{"node":"h1","host_namespace":true,"queue_pairs":[` + pair + "]}\n", 200, ""},
		{`{"node":"h2","host_namespace":true,"queue_pairs":[]}`, 200, `agent of "h1": its list is not of this node`},
		{`{"node":"h1","queue_pairs":[` + strings.Replace(pair, "17", "16777216", 1) + "]}", 200, `field "lqpn": 16777216: a number up to 16777215`},
		{`{"node":"h1","queue_pairs":5}`, 200, `field "queue_pairs"`},
		{`[`, 200, `agent of "h1": `},
		{"404 page not found\n", 404, `agent of "h1": it runs without --rdma.queue-pairs`},
		{"netlink: no such file\n", 503, `agent of "h1": 503 Service Unavailable: netlink: no such file`},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/queue-pairs" || r.Method != http.MethodGet {
				t.Errorf("%s %s", r.Method, r.URL)
			}
			w.WriteHeader(x.code)
			_, _ = w.Write([]byte(x.answer))
		}))
		got, err := HTTPAgents{Client: srv.Client(), URL: func(string) string { return srv.URL }}.QueuePairs(t.Context(), "h1")
		srv.Close()
		switch {
		case x.want == "" && (err != nil || len(got.QueuePairs) != 1 || got.QueuePairs[0].Remote != 18 || !got.HostNamespace):
			t.Errorf("%+v, %v", got, err)
		case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v, want %q", x.answer, err, x.want)
		}
	}
}
