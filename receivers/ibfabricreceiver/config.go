package ibfabricreceiver

import "github.com/graylink/graylink/internal/ibagent"

// Config is what the receiver's part of the sampling is.
type Config struct {
	ibagent.Config `mapstructure:",squash"`
}

// Validate names the key that is wrong.
func (c *Config) Validate() error { return c.Config.Validate() }
