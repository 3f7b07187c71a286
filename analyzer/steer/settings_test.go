package steer

import (
	"errors"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

func TestSettings(t *testing.T) {
	const hook = "webhook: {url: \"https://hook\", secret_file: s}"
	for _, test := range []struct{ text, field string }{
		{"{}", ""},
		{"{mode: off}", ""},
		{"{mode: dry_run, audit_file: a}", ""},
		{"{mode: act, audit_file: a, leader: sole, " + hook + "}", ""},
		{"{mode: act, audit_file: a, leader: lease, lease: {namespace: n, name: x}, slurm: {url: \"https://s\", version: v0.0.46}}", ""},
		{"{mode: act, audit_file: a, leader: sole, kubernetes: {url: \"http://127.0.0.1:8001\", taint: true}}", ""},
		{"{mode: on}", "mode"},
		{"{mode: dry_run}", "mode"},
		{"{mode: act, audit_file: a, " + hook + "}", "mode"},
		{"{mode: act, audit_file: a, leader: both, " + hook + "}", "leader"},
		{"{mode: act, audit_file: a, leader: sole}", "mode"},
		{"{mode: act, audit_file: a, leader: lease, " + hook + "}", "leader"},
		{"{leader: sole, lease: {namespace: n, name: x}}", "lease"},
		{"{leader: lease, lease: {name: x}}", "lease.namespace"},
		{"{leader: lease, lease: {namespace: n}}", "lease.name"},
		{"{trusted_accounts: [ann, \"\"]}", "trusted_accounts[1]"},
		{"{webhook: {secret_file: s}}", "webhook.url"},
		{"{webhook: {url: \"http://hook\", secret_file: s}}", "webhook.url"},
		{"{webhook: {url: \"https://a:b@hook\", secret_file: s}}", "webhook.url"},
		{"{webhook: {url: \"https://hook?x=1\", secret_file: s}}", "webhook.url"},
		{"{webhook: {url: \"https://hook\"}}", "webhook.secret_file"},
		{"{webhook: {url: \"https://hook\", secret_file: s, timeout: 1m}}", "webhook.timeout"},
		{"{kubernetes: {url: \"ftp://k\"}}", "kubernetes.url"},
		{"{kubernetes: {url: \"https://k\", bearer_token: a, basic_auth: {username: b}}}", "kubernetes"},
		{"{slurm: {url: \"https://s\"}}", "slurm.version"},
		{"{slurm: {url: \"https://s\", version: v0.0.42}}", "slurm.version"},
	} {
		s := DefaultSettings()
		if err := yaml.Unmarshal([]byte(test.text), &s); err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		var f *FieldError
		switch err := s.Validate(); {
		case test.field == "" && err != nil:
			t.Errorf("%s: %v", test.text, err)
		case test.field != "" && (!errors.As(err, &f) || f.Field != test.field):
			t.Errorf("%s: %v, want an error of %s", test.text, err, test.field)
		}
		if s.Webhook != nil && s.Webhook.Timeout == 0 {
			t.Errorf("%s: no default of the timeout", test.text)
		}
	}
}

func TestSettingsDefaults(t *testing.T) {
	s := DefaultSettings()
	if err := yaml.Unmarshal([]byte("{audit_file: a, webhook: {url: \"https://hook\", secret_file: s, tls_config: {ca_file: ca}}}"), &s); err != nil {
		t.Fatal(err)
	}
	s.SetDirectory("/etc/graylink")
	if w := s.Webhook; s.Mode != ModeOff || w.Timeout != 5*time.Second || w.SecretFile != "/etc/graylink/s" || w.Client.TLSConfig.CAFile != "/etc/graylink/ca" ||
		s.AuditFile != "/etc/graylink/a" {
		t.Errorf("%+v, %+v", s, w)
	}
}
