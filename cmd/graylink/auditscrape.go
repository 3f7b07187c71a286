package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"
)

// auditJobs are the jobs of the example of a Prometheus that an audit needs.
var auditJobs = []string{"graylink-node-edges", "graylink-node"}

// Jobs of the example whose targets are in files.
const (
	switchJob    = "graylink-switch"
	collectorJob = "otelcol-graylink"
)

// checkTargetFiles returns the absolute paths of the files of targets by job. It fails if one cannot be read, or has a name that
// Prometheus does not take.
func checkTargetFiles(files map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for job, name := range files {
		if name == "" {
			continue
		}
		if ext := filepath.Ext(name); ext != ".yml" && ext != ".yaml" && ext != ".json" {
			return nil, fmt.Errorf("targets of %s: %q: a file .yml, .yaml or .json is expected", job, name)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("targets of %s: %w", job, err)
		}
		var groups []struct {
			Targets []string          `yaml:"targets"`
			Labels  map[string]string `yaml:"labels"`
		}
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&groups); err != nil {
			return nil, fmt.Errorf("targets of %s: %s: %w", job, name, err)
		}
		if out[job], err = filepath.Abs(name); err != nil {
			return nil, fmt.Errorf("targets of %s: %w", job, err)
		}
	}
	return out, nil
}

// scrapeConfig returns the configuration of a Prometheus that scrapes the agents of a coordinator, as the example does, and the jobs
// whose targets are in files. The text of the file httpFile has the settings of the HTTP clients.
func scrapeConfig(example []byte, coordinator, httpFile string, httpText []byte, interval time.Duration,
	files map[string]string) (string, error) {
	var c map[string]any
	if err := yaml.Unmarshal(example, &c); err != nil {
		return "", err
	}
	var client map[string]any
	if err := yaml.Unmarshal(httpText, &client); err != nil {
		return "", fmt.Errorf("--http.config: %w", err)
	}
	resolveFiles(client, filepath.Dir(httpFile))
	targets, err := url.JoinPath(coordinator, "/api/v1/targets")
	if err != nil {
		return "", fmt.Errorf("--coordinator: %w", err)
	}
	var jobs []any
	every := model.Duration(interval).String()
	for _, j := range c["scrape_configs"].([]any) {
		job := j.(map[string]any)
		name := job["job_name"].(string)
		job["scrape_interval"], job["scrape_timeout"] = every, every
		if files[name] != "" {
			maps.Copy(job, client)
			job["file_sd_configs"] = []any{map[string]any{"files": []string{files[name]}}}
			jobs = append(jobs, job)
		}
		if !slices.Contains(auditJobs, name) {
			continue
		}
		discovery := map[string]any{"url": targets, "refresh_interval": targetsEvery.String()}
		maps.Copy(discovery, client)
		maps.Copy(job, client)
		job["http_sd_configs"] = []any{discovery}
		jobs = append(jobs, job)
	}
	text, err := yaml.Marshal(map[string]any{"global": map[string]any{"scrape_interval": every, "scrape_timeout": every, "scrape_native_histograms": true}, "scrape_configs": jobs})
	return string(text), err
}

// resolveFiles joins the relative paths of the files that a configuration of HTTP clients names with a directory. All of its
// names of files end in _file, or are lists that are called files.
func resolveFiles(c map[string]any, dir string) {
	for key, value := range c {
		switch x := value.(type) {
		case map[string]any:
			resolveFiles(x, dir)
		case string:
			if strings.HasSuffix(key, "_file") {
				c[key] = config_util.JoinDir(dir, x)
			}
		case []any:
			for i := range x {
				if name, ok := x[i].(string); ok && key == "files" {
					x[i] = config_util.JoinDir(dir, name)
				}
			}
		}
	}
}
