package ufm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// text is a JSON text, number or null, as text: versions of UFM differ in which.
type text string

// UnmarshalJSON takes a text, a number or null.
func (t *text) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
		*t = ""
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = text(s)
		return nil
	case b[0] == '-' || b[0] >= '0' && b[0] <= '9':
		*t = text(b)
		return nil
	case b[0] == '[': // Condition of an unhealthy port, since 6.17
		var list []string
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		*t = text(strings.Join(list, ","))
		return nil
	}
	return fmt.Errorf("a text or a number is expected, not %.20s", b)
}

// Event is an event of UFM.
type Event struct {
	// ID is UFM's number. It begins again when a standby takes over.
	ID string
	// Code is the number of the event's type (EventKind).
	Code string
	// Name is the type's, as UFM has it; it may be anything.
	Name, Severity, Category string
	// Object is what it is about, ObjectType of what sort that is ("Site", "IBPort";
	// from 6.17 on), Path where that stands.
	Object, ObjectType, Path string
	Description              string
	// Written is its time as UFM writes it; At is the same by UFM's clock, zero where it
	// cannot be read.
	Written string
	At      time.Time
}

type eventJSON struct {
	ID          text `json:"id"`
	Type        text `json:"type"`
	EventType   text `json:"event_type"`
	Name        text `json:"name"`
	Severity    text `json:"severity"`
	Category    text `json:"category"`
	Object      text `json:"object_name"`
	Path        text `json:"object_path"`
	Description text `json:"description"`
	Timestamp   text `json:"timestamp"`
}

// event takes both shapes: 6.12 has the code as "type" and milliseconds, 6.24 has it
// as "event_type", what the object is as "type", and seconds.
func (e *eventJSON) event(zone *time.Location) (Event, error) {
	code, object := e.EventType, e.Type
	if code == "" {
		code, object = e.Type, ""
	}
	if e.Name == "" && code == "" {
		return Event{}, errorf(KindMalformed, "event %q: a name or a type is expected", string(e.ID))
	}
	return Event{ID: string(e.ID), Code: string(code), Name: string(e.Name), Severity: string(e.Severity), Category: string(e.Category),
		Object: string(e.Object), ObjectType: string(object), Path: string(e.Path), Description: string(e.Description),
		Written: string(e.Timestamp), At: clock(string(e.Timestamp), zone)}, nil
}

// About is the port, or the node, that an object's name stands for: a GUID of 16
// digits, with the port's number behind an underscore where it is a port's. false: the
// name is of another sort. A number of 0 is none.
func About(object string) (Identity, bool) {
	digits, number, port := strings.Cut(object, "_")
	if len(strings.TrimPrefix(digits, "0x")) != 16 {
		return Identity{}, false
	}
	g, err := ParseGUID(digits)
	if err != nil || g == 0 {
		return Identity{}, false
	}
	id := Identity{Port: g}
	if port {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return Identity{}, false
		}
		id.Number = int(n)
	}
	return id, true
}

// clock reads a time of the REST interface: of a wall clock, with or without parts of
// a second, or a number since 1970.
func clock(s string, zone *time.Location) time.Time {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05", time.ANSIC} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t
		}
	}
	return when([]byte(s))
}

// Events are all events that UFM keeps.
func (c *Client) Events(ctx context.Context, zone *time.Location) ([]Event, error) {
	var out []Event
	var bad error
	err := list(ctx, c, "/app/events", func(j eventJSON) {
		e, err := j.event(zone)
		if err != nil {
			bad = err
			return
		}
		out = append(out, e)
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// Alarm is an alarm that is open.
type Alarm struct {
	ID string
	// Code is the number of the type of the event that raised it (EventKind).
	Code, Name, Severity string
	// Object is what it is about, Path where that stands.
	Object, Path, Reason string
	At                   time.Time
}

// Place is how the alarm's object is shown: by its path, where there is one.
func (a *Alarm) Place() string {
	if a.Path != "" {
		return a.Path
	}
	return a.Object
}

// alarmJSON has both shapes: 6.12 names the object "related_object_...", 6.17 and later
// "object_...".
type alarmJSON struct {
	ID            text `json:"id"`
	EventType     text `json:"event_type"`
	Name          text `json:"name"`
	Severity      text `json:"severity"`
	Object        text `json:"object_name"`
	Path          text `json:"object_path"`
	RelatedObject text `json:"related_object_name"`
	RelatedPath   text `json:"related_object_path"`
	Reason        text `json:"reason"`
	Description   text `json:"description"`
	Timestamp     text `json:"timestamp"`
}

func (a *alarmJSON) alarm(zone *time.Location) (Alarm, error) {
	if a.Name == "" && a.EventType == "" {
		return Alarm{}, errorf(KindMalformed, "alarm %q: a name or an event_type is expected", string(a.ID))
	}
	return Alarm{ID: string(a.ID), Code: string(a.EventType), Name: string(a.Name), Severity: string(a.Severity), Object: string(cmp.Or(a.Object, a.RelatedObject)),
		Path: string(cmp.Or(a.Path, a.RelatedPath)), Reason: string(cmp.Or(a.Reason, a.Description)), At: clock(string(a.Timestamp), zone)}, nil
}

// Alarms are all that are open.
func (c *Client) Alarms(ctx context.Context, zone *time.Location) ([]Alarm, error) {
	var out []Alarm
	var bad error
	err := list(ctx, c, "/app/alarms", func(j alarmJSON) {
		a, err := j.alarm(zone)
		if err != nil {
			bad = err
			return
		}
		out = append(out, a)
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// VPort is a virtual port, of the physical port whose identity it has.
type VPort struct {
	Identity
	State string
}

// VPorts are all of them. Those whose port cannot be read are counted in bad.
func (c *Client) VPorts(ctx context.Context) (out []VPort, bad int, err error) {
	err = list(ctx, c, "/resources/vports", func(j struct {
		GUID        text `json:"port_guid"`
		Number      text `json:"physical_port_number"`
		State       text `json:"virtual_port_state"`
		Description text `json:"node_description"`
	}) {
		g, e1 := ParseGUID(string(j.GUID))
		n, e2 := strconv.ParseUint(string(j.Number), 10, 16)
		if e1 != nil || e2 != nil {
			bad++
			return
		}
		out = append(out, VPort{Identity{Port: g, Number: int(n)}, string(j.State)})
	})
	return out, bad, err
}

// Jobs counts the jobs that UFM lists, by status ("Running", "Completed", "Completed
// With Errors").
func (c *Client) Jobs(ctx context.Context) (map[string]int, error) {
	out := map[string]int{}
	err := list(ctx, c, "/jobs", func(j struct {
		Status text `json:"Status"`
	}) {
		out[string(j.Status)]++
	})
	return out, err
}

// UnhealthyPort is a port that the subnet manager holds for unhealthy.
type UnhealthyPort struct {
	Identity
	Condition string
}

// UnhealthyPorts are all of them. Those whose GUID or number cannot be read are
// counted in bad.
func (c *Client) UnhealthyPorts(ctx context.Context) (out []UnhealthyPort, bad int, err error) {
	err = list(ctx, c, "/app/unhealthy_ports", func(j struct {
		GUID      text `json:"UnhealthyGUID"`
		Number    text `json:"UnhealthyPortNumber"`
		Node      text `json:"UnhealthyNode"`
		Type      text `json:"UnhealthyNodeType"`
		Condition text `json:"Condition"`
	}) {
		g, e1 := ParseGUID(string(j.GUID))
		n, e2 := strconv.ParseUint(string(j.Number), 10, 16)
		if e1 != nil || e2 != nil {
			bad++
			return
		}
		out = append(out, UnhealthyPort{Identity{Port: g, Number: int(n), Description: string(j.Node), Type: string(j.Type)}, string(j.Condition)})
	})
	return out, bad, err
}

// Version is the version of UFM.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		Release text `json:"ufm_release_version"`
	}
	err := c.Get(ctx, c.Base()+"/app/ufm_version", func(r io.Reader) error {
		if err := json.NewDecoder(r).Decode(&v); err != nil {
			return decodeError(err, 0)
		}
		if v.Release == "" {
			return errorf(KindMalformed, "ufm_release_version: a version is expected")
		}
		return nil
	})
	return string(v.Release), err
}

// System is a switch, a host or another node of resources/systems.
type System struct {
	Name text `json:"system_name"`
	GUID text `json:"system_guid"`
	Own  text `json:"guid"`
	Type text `json:"type"`
}

// PortInfo is a port of resources/ports.
type PortInfo struct {
	Name        text `json:"name"`
	GUID        text `json:"guid"`
	Number      text `json:"number"`
	SystemID    text `json:"systemID"`
	System      text `json:"system_name"`
	Description text `json:"node_description"`
	State       text `json:"logical_state"`
	Physical    text `json:"physical_state"`
	Speed       text `json:"active_speed"`
	Width       text `json:"active_width"`
	Peer        text `json:"peer"`
	LID         text `json:"lid"`
	// What the port may do, as lists.
	EnabledSpeed text `json:"enabled_speed"`
	EnabledWidth text `json:"enabled_width"`
}

// LinkInfo is a cable of resources/links.
type LinkInfo struct {
	SourceGUID      text `json:"source_guid"`
	SourcePort      text `json:"source_port"`
	DestinationGUID text `json:"destination_guid"`
	DestinationPort text `json:"destination_port"`
	Width           text `json:"width"`
}

// Inventory asks for systems and ports, and links.
func (c *Client) Inventory(ctx context.Context) (*Inventory, error) {
	v := &Inventory{}
	if err := list(ctx, c, "/resources/systems", func(s System) { v.Systems = append(v.Systems, s) }); err != nil {
		return nil, err
	}
	if err := list(ctx, c, "/resources/ports", func(p PortInfo) { v.Ports = append(v.Ports, p) }); err != nil {
		return nil, err
	}
	if err := list(ctx, c, "/resources/links", func(l LinkInfo) { v.Links = append(v.Links, l) }); err != nil {
		return nil, err
	}
	return v, v.index()
}
