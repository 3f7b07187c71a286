package lab

import (
	"time"
)

// Fault is a request to break something.
type Fault struct {
	Kind string `json:"kind"`
	// At is the element: a link, a NIC, a switch or a node, as the kind asks.
	At string `json:"at"`
	// Direction is FROM->TO of a link; in, out or both for nic-slow.
	Direction string        `json:"direction,omitempty"`
	Delay     time.Duration `json:"delay_ns,omitempty"`
	Loss      float64       `json:"loss,omitempty"` // 0 to 1
}

// ActiveFault is a fault that is in force.
type ActiveFault struct {
	ID string `json:"id"`
	Fault
	Mechanism string    `json:"mechanism"`
	Since     time.Time `json:"since"`
	Helper    Process   `json:"helper,omitzero"`
}
