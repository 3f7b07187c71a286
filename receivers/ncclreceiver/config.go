package ncclreceiver

import (
	"fmt"
	"time"

	"github.com/graylink/graylink/internal/ccl/follow"
)

// Bounds of the interval.
const (
	leastInterval = time.Second
	mostInterval  = time.Hour
)

// Config configures the receiver.
type Config struct {
	follow.Config `mapstructure:",squash"`
	// Interval is the time between two times at which metrics are passed on: 1s to 1h.
	Interval time.Duration `mapstructure:"interval"`
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	if c.Interval < leastInterval || c.Interval > mostInterval {
		return fmt.Errorf("interval: a time from %s to %s is expected, not %s", leastInterval, mostInterval, c.Interval)
	}
	return c.Config.Validate()
}
