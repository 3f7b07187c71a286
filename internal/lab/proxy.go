package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

// DialLoopback connects to a program that listens on the loopback of a node's or switch's
// namespace. addr is element:port. No fault of the fabric is in the way.
func (l *Lab) DialLoopback(ctx context.Context, network, addr string) (net.Conn, error) {
	element, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return l.DialContext(ctx, element, network, "127.0.0.1:"+port)
}

// HTTPProxy returns an HTTP forward proxy into the lab, for programs that have a proxy_url and no sockets inside
// namespaces: a request for http://h3:9868/metrics goes to h3's loopback. A host that is not an element of the lab is
// refused, so that the proxy leads nowhere else.
func (l *Lab) HTTPProxy() http.Handler {
	transport := &http.Transport{DialContext: l.DialLoopback, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, DisableCompression: true}
	forward := &httputil.ReverseProxy{
		// The request names its target already. It reaches the agent at its own loopback, where it listens, with the
		// note that the client is on another machine.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Host = net.JoinHostPort("127.0.0.1", r.In.URL.Port())
			if host, _, err := net.SplitHostPort(r.In.RemoteAddr); err != nil || !net.ParseIP(host).IsLoopback() {
				r.SetXForwarded()
			}
		},
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, fmt.Sprintf("%s: %v", r.URL.Host, err), http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Scheme != "http" {
			http.Error(w, "this is a proxy for plain HTTP into a lab: set it as proxy_url and ask for http://ELEMENT:PORT/", http.StatusBadRequest)
			return
		}
		if _, err := l.NetnsOf(r.URL.Hostname()); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		forward.ServeHTTP(w, r)
	})
}
