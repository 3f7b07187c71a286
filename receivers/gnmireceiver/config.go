package gnmireceiver

import "github.com/graylink/graylink/internal/gnmi"

// Config is what the receiver subscribes to.
type Config struct {
	gnmi.Config `mapstructure:",squash"`
}

// Validate names the key that is wrong.
func (c *Config) Validate() error { return c.Config.Validate() }
