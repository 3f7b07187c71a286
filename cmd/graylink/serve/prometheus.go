package serve

import (
	"fmt"
	"net/url"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/daemon"
)

// replacedAddresses are the addresses in the example of a Prometheus beside the programs, and the hosts that stand for
// them here.
var replacedAddresses = map[string]string{"127.0.0.1:9869": coordinatorHost + ":80", "127.0.0.1:9872": analyzerHost + ":80", "127.0.0.1:9090": prometheusHost + ":80"}

// prometheusConfig returns the configuration of the Prometheus: the example for a Prometheus beside the programs, with
// the parts of this process in the place of the programs.
func prometheusConfig(example []byte, o *Options, switches *daemon.Switches) (string, error) {
	var c map[string]any
	if err := yaml.Unmarshal(example, &c); err != nil {
		return "", err
	}
	c["rule_files"] = []string{"*.rules.yaml"}
	c["global"].(map[string]any)["scrape_native_histograms"] = true
	delete(c, "alerting")
	if len(o.Alertmanagers) > 0 {
		var all []any
		for _, a := range o.Alertmanagers {
			u, err := url.Parse(a)
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
				return "", fmt.Errorf("%q: the http or https URL of an Alertmanager is expected, without credentials", a)
			}
			all = append(all, map[string]any{"scheme": u.Scheme, "path_prefix": u.Path, "static_configs": staticTargets(u.Host)})
		}
		c["alerting"] = map[string]any{"alertmanagers": all}
	}
	var jobs []any
	for _, j := range c["scrape_configs"].([]any) {
		job := j.(map[string]any)
		for _, d := range listOf(job["http_sd_configs"]) {
			d.(map[string]any)["refresh_interval"] = refreshEvery // it costs a call within the process
		}
		switch job["job_name"] {
		case "graylink-switch":
			targets, err := switchTargets(switches)
			if err != nil {
				return "", err
			}
			if len(targets) == 0 {
				continue
			}
			delete(job, "file_sd_configs")
			job["static_configs"] = targets
		case "otelcol-graylink":
			job["file_sd_configs"] = []any{map[string]any{"files": []string{o.file("collectors.yml")}}}
		}
		jobs = append(jobs, job)
	}
	c["scrape_configs"] = jobs
	text, err := yaml.Marshal(c)
	if err != nil {
		return "", err
	}
	out := string(text)
	for from, to := range replacedAddresses {
		out = strings.ReplaceAll(out, from, to)
	}
	return out, nil
}

// refreshEvery is the interval at which agents to scrape are looked for.
const refreshEvery = "2s"

// listOf returns a list of a configuration, which may be missing.
func listOf(v any) []any {
	l, _ := v.([]any)
	return l
}

func staticTargets(host string) []any { return []any{map[string]any{"targets": []string{host}}} }

// switchTargets returns a target for each switch, with its name as instance.
func switchTargets(s *daemon.Switches) (out []any, err error) {
	if s == nil {
		return nil, nil
	}
	for _, name := range s.Names {
		u, err := url.Parse(strings.ReplaceAll(s.URL, "{switch}", name))
		if err != nil {
			return nil, err
		}
		out = append(out, map[string]any{"targets": []string{u.Host}, "labels": map[string]string{"instance": name}})
	}
	return out, nil
}
