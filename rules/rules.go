// Package rules holds the recording rules and alerts that are loaded into Prometheus
// (*.rules.yaml), and promtool's tests of them (*_test.yaml). It has no code but the files: its
// tests keep the rules in step with what the programs expose.
//
// The rules of the rules:
//
//  1. The labels of an alert by a verdict are its element, kind and plane, and nothing that may
//     change while the incident lasts. Every kind of element has exactly one alert.
//  2. Equal verdicts of two analyzers make one alert: instance and replica are never labels
//     of it.
//  3. Only critical verdicts page, and a page lasts until the element is cleared.
//  4. Every series that a rule queries is exposed by the code or recorded by a rule.
//  5. Every alert has a test in which it fires, one in which it does not, and a runbook.
//  6. Expressions are valid in Prometheus 2.42 and in the newest.
package rules

import "embed"

// Files has the files of rules.
//
//go:embed *.rules.yaml
var Files embed.FS
