package node

import (
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
)

func BenchmarkGather(b *testing.B) {
	for _, e := range expositions(fleetNode(16)) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(e.reference)
		for _, by := range []struct {
			name string
			g    prometheus.Gatherer
		}{{"registry", registry}, {"own", e.own}} {
			b.Run(e.path+"/"+by.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					gather(b, by.g)
				}
			})
		}
	}
}

// BenchmarkScrape measures a whole scrape: snapshot, families, encoding, compression.
func BenchmarkScrape(b *testing.B) {
	for _, leaves := range []int{16, 64} {
		for _, e := range expositions(fleetNode(leaves)) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(e.reference)
			for _, by := range []struct {
				name string
				g    prometheus.Gatherer
			}{{"registry", registry}, {"own", e.own}} {
				for _, format := range []expfmt.FormatType{expfmt.TypeProtoDelim, expfmt.TypeTextPlain} {
					for _, coding := range []string{"identity", "gzip"} {
						name := fmt.Sprintf("%s/leaves=%d/%s/%s/%s", e.path, leaves, by.name, map[expfmt.FormatType]string{expfmt.TypeProtoDelim: "protobuf", expfmt.TypeTextPlain: "text"}[format], coding)
						h := promhttp.HandlerFor(by.g, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, EnableOpenMetrics: true})
						b.Run(name, func(b *testing.B) {
							b.ReportAllocs()
							r := httptest.NewRequest("GET", "/", nil)
							r.Header.Set("Accept", string(expfmt.NewFormat(format)))
							r.Header.Set("Accept-Encoding", coding)
							var size int
							for b.Loop() {
								w := httptest.NewRecorder()
								h.ServeHTTP(w, r)
								if w.Code != http.StatusOK {
									b.Fatal(w.Body)
								}
								size = w.Body.Len()
								if coding == "gzip" {
									if _, err := gzip.NewReader(w.Body); err != nil {
										b.Fatal(err)
									}
								}
							}
							b.ReportMetric(float64(size), "bytes")
						})
					}
				}
			}
		}
	}
}
