package gnmireceiver

import "github.com/graylink/graylink/internal/gnmi"

// Config configures the receiver's subscriptions.
type Config struct {
	gnmi.Config `mapstructure:",squash"`
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error { return c.Config.Validate() }
