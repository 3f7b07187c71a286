package ncclreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules).
func buildMetrics(all []points.Point, _ []pki.Expiry, began, now time.Time) pmetric.Metrics {
	return metricfamily.BuildPoints("github.com/graylink/graylink/receivers/ncclreceiver", all, began, now)
}
