package lab

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestProxyReachesElementsAndNothingElse(t *testing.T) {
	l := up(t, demoFile, "proxy")
	for _, element := range []string{"h3", "leaf1"} {
		ln, err := l.Listen(t.Context(), element, "tcp4", "127.0.0.1:9868")
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "127.0.0.1:9868" {
				t.Errorf("%s is asked as %s", element, r.Host)
			}
			fmt.Fprintf(w, "%s %s of %s%s", r.Method, r.URL, element, r.Header.Get("X-Forwarded-For"))
		})}
		go srv.Serve(ln)
		defer srv.Close()
	}
	outside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the proxy led out of the lab") }))
	defer outside.Close()
	proxy := httptest.NewServer(l.HTTPProxy())
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(at), DisableKeepAlives: true}}
	for _, tt := range []struct {
		url  string
		code int
		want string
	}{
		{"http://h3:9868/metrics?a=b", http.StatusOK, "GET /metrics?a=b of h3"},
		{"http://leaf1:9868/", http.StatusOK, "GET / of leaf1"},
		{"http://h4:9868/", http.StatusBadGateway, "refused"},
		{"http://absent:9868/", http.StatusForbidden, `"absent"`},
		{outside.URL, http.StatusForbidden, `"127.0.0.1"`},
	} {
		resp, err := client.Get(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: %d %q, %v; want %d with %q", tt.url, resp.StatusCode, body, err, tt.code, tt.want)
		}
	}
	resp, err := http.Get(proxy.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("asked as a server: %d", resp.StatusCode)
	}
}
