// Package rules holds the recording rules and alerts that are loaded into Prometheus
// (*.rules.yaml), and promtool's tests of them (*_test.yaml). It has no code: its tests
// keep the rules in step with what the programs expose.
//
// The rules of the rules:
//
//  1. The labels of an alert by a verdict are its element, kind and plane: nothing that may
//     change while the incident lasts. There is one for every kind of element.
//  2. Two analyzers that say the same are one alert: instance and replica are never labels
//     of it.
//  3. A page is for what is critical, and lasts until the element is cleared.
//  4. Whatever a rule asks for is exposed by the code or recorded by a rule.
//  5. Every alert has a test in which it fires, one in which it does not, and a runbook.
//  6. Expressions are valid in Prometheus 2.42 and in the newest.
package rules
