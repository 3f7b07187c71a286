package nichealth

import (
	"fmt"
	"log/slog"
	"time"
)

// Event is one finding about a NIC or one of its ports, or its end. The fields are those that
// NVSentinel's health events have, so that they mean the same in a log, in OTLP and there.
type Event struct {
	// Agent is who found it: "graylink-node".
	Agent string `json:"agent"`
	// ComponentClass is "NIC".
	ComponentClass string `json:"componentClass"`
	// CheckName is the rule: StateCheck, CounterCheck, KernelLogCheck, ...
	CheckName string `json:"checkName"`
	// IsFatal: the workload that runs has failed or will. IsHealthy: what was found is over.
	IsFatal   bool `json:"isFatal"`
	IsHealthy bool `json:"isHealthy"`
	// Message is a sentence for a person.
	Message string `json:"message"`
	// RecommendedAction is NONE, CONTACT_SUPPORT, RESTART_VM or REPLACE_VM.
	RecommendedAction Action `json:"recommendedAction"`
	// EntitiesImpacted are the device, or the port, that it is about.
	EntitiesImpacted []Entity `json:"entitiesImpacted"`
	// ErrorCode names what was found, for programs: "state_down", "link_downed", ...
	ErrorCode []string `json:"errorCode"`
	NodeName  string   `json:"nodeName"`
	// GeneratedTimestamp is when it was found, by this node's clock.
	GeneratedTimestamp time.Time `json:"generatedTimestamp"`
}

// Name is the name of the events where events of several kinds are mixed.
const Name = "nic_health"

// LogLevel returns the level of the event's log line: information for an end, and error for a fatal event.
func (e *Event) LogLevel() slog.Level {
	switch {
	case e.IsHealthy:
		return slog.LevelInfo
	case e.IsFatal:
		return slog.LevelError
	}
	return slog.LevelWarn
}

// LogAttributes returns all fields but message and time, under the names that they have in JSON. Entities are written
// as "NICPort:mlx5_0_port1".
func (e *Event) LogAttributes() []slog.Attr {
	entities := make([]string, len(e.EntitiesImpacted))
	for i, x := range e.EntitiesImpacted {
		entities[i] = string(x.Type) + ":" + x.Value
	}
	return []slog.Attr{slog.String("agent", e.Agent), slog.String("componentClass", e.ComponentClass), slog.String("checkName", e.CheckName), slog.Bool("isFatal", e.IsFatal),
		slog.Bool("isHealthy", e.IsHealthy), slog.String("recommendedAction", string(e.RecommendedAction)), slog.Any("entitiesImpacted", entities), slog.Any("errorCode", e.ErrorCode),
		slog.String("nodeName", e.NodeName)}
}

// Agent is the name under which events are made.
const Agent = "graylink-node"

// ComponentNIC is the class of all components here.
const ComponentNIC = "NIC"

// Action names what to do about an event.
type Action string

// Actions. A fatal event requires another machine, a warning requires nothing yet.
const (
	ActionNone           Action = "NONE"
	ActionContactSupport Action = "CONTACT_SUPPORT"
	ActionRestartVM      Action = "RESTART_VM"
	ActionReplaceVM      Action = "REPLACE_VM"
)

// Entity names the subject of an event.
type Entity struct {
	Type  EntityType `json:"entityType"`
	Value string     `json:"entityValue"`
}

// EntityType is NIC or NICPort.
type EntityType string

// Types of entities.
const (
	EntityNIC  EntityType = "NIC"
	EntityPort EntityType = "NICPort"
)

// NICEntity returns the entity of a device: "mlx5_0".
func NICEntity(device string) Entity { return Entity{EntityNIC, device} }

// PortEntity returns the entity of a port of a device: "mlx5_0_port1".
func PortEntity(device string, port int) Entity {
	return Entity{EntityPort, fmt.Sprintf("%s_port%d", device, port)}
}
