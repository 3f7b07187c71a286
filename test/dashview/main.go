// Command dashview draws the data of the dashboards without Grafana: one static HTML page for each
// dashboard, with all values selected, from the last minutes of a Prometheus. It does not replace
// Grafana: it supports only the kinds of panels that dashboards.go makes.
//
//	go run ./test/dashview --prometheus http://127.0.0.1:9090 --span 5m --out /tmp/dashboards
package main

import (
	"context"
	"fmt"
	"html/template"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/graylink/graylink/dashboards"
)

func main() {
	url := kingpin.Flag("prometheus", "URL of the Prometheus to query.").Default("http://127.0.0.1:9090").String()
	out := kingpin.Flag("out", "Directory of the pages.").Required().String()
	span := kingpin.Flag("span", "How much is drawn, up to now.").Default("5m").Duration()
	kingpin.Parse()
	if err := run(*url, *out, *span); err != nil {
		slog.Error("dashview", "err", err)
		os.Exit(1)
	}
}

func run(url, out string, span time.Duration) error {
	client, err := api.NewClient(api.Config{Address: url})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	p := &painter{db: promv1.NewAPI(client), from: time.Now().Add(-span), to: time.Now()}
	p.step = max(span/300, time.Second)
	for name, d := range dashboards.All() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		page, err := p.buildPage(ctx, d)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		file := filepath.Join(out, name+".html")
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		if err := sheet.Execute(f, page); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
		fmt.Printf("%s: %d panels, %d without data\n", file, len(page.Panels), page.Empty)
	}
	return nil
}

// Sizes of the grid, pixels.
const (
	column = 60
	row    = 36
)

var sheet = template.Must(template.New("sheet").Parse(`<!doctype html><meta charset="utf-8"><title>{{.Title}}</title>
<style>
body{background:#111217;color:#ccccdc;font:13px sans-serif;margin:8px;width:1456px}
h1{font-size:18px;font-weight:normal;margin:4px}
.p{position:absolute;background:#181b1f;border:1px solid #2a2c33;overflow:hidden;box-sizing:border-box;padding:4px 6px}
.t{font-size:13px;color:#fff;white-space:nowrap}
.big{font-size:40px;text-align:center;margin-top:10px}
table{border-collapse:collapse;width:100%;font-size:12px}td,th{text-align:left;padding:1px 6px;border-bottom:1px solid #2a2c33;white-space:nowrap}th{color:#8ab8ff}
.none{color:#888;text-align:center;margin-top:30px}
.key{font-size:10px;line-height:12px;overflow:hidden}
</style><h1>{{.Title}} - {{.Description}}</h1>
<div style="position:relative;height:{{.Height}}px">
{{range .Panels}}<div class="p" style="left:{{.X}}px;top:{{.Y}}px;width:{{.W}}px;height:{{.H}}px"><div class="t" title="{{.Text}}">{{.Title}}</div>
{{if .Empty}}<div class="none">no data</div>{{end}}{{with .Big}}<div class="big" style="color:{{.Color}}">{{.Text}}</div>{{end}}
{{with .Table}}<table><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}</table>{{end}}
{{.Picture}}{{range .Key}}<div class="key"><span style="color:{{.Color}}">&#9632;</span> {{.Text}}</div>{{end}}</div>
{{end}}</div>`))
