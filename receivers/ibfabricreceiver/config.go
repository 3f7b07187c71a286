package ibfabricreceiver

import "github.com/graylink/graylink/internal/ibagent"

// Config configures the receiver's part of the sampling.
type Config struct {
	ibagent.Config `mapstructure:",squash"`
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error { return c.Config.Validate() }
