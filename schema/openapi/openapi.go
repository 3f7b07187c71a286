// Package openapi has the OpenAPI description of the analyzer's HTTP API. The test of package schema generates it from the types of
// the answers and the list of requests in docs/reference/http-api.md: go test ./schema -update.
package openapi

import _ "embed"

//go:embed analyzer.json
var analyzer []byte

// Analyzer returns the description of the requests below /api/v1 that graylink-analyzer answers, as JSON. The caller must not change it.
func Analyzer() []byte { return analyzer }
