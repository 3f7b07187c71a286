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

// jsonText is the text of a JSON string, number or null, because versions of UFM use different types.
type jsonText string

// UnmarshalJSON accepts a string, a number or null.
func (t *jsonText) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
		*t = ""
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = jsonText(s)
		return nil
	case b[0] == '-' || b[0] >= '0' && b[0] <= '9':
		*t = jsonText(b)
		return nil
	case b[0] == '[': // Condition of an unhealthy port, since 6.17
		var list []string
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		*t = jsonText(strings.Join(list, ","))
		return nil
	}
	return fmt.Errorf("a text or a number is expected, not %.20s", b)
}

// Event is an event of UFM.
type Event struct {
	// ID is UFM's number of the event. Numbering begins again when a standby takes over.
	ID string
	// Code is the number of the event's type (EventKind).
	Code string
	// Name is UFM's name of the type; it may be any text.
	Name, Severity, Category string
	// Object is the object of the event, ObjectType its type ("Site", "IBPort"; from 6.17 on), Path its place.
	Object, ObjectType, Path string
	Description              string
	// Written is the event's time as UFM writes it. At is the same by UFM's clock, or zero where it cannot be
	// parsed.
	Written string
	At      time.Time
}

type eventJSON struct {
	ID          jsonText `json:"id"`
	Type        jsonText `json:"type"`
	EventType   jsonText `json:"event_type"`
	Name        jsonText `json:"name"`
	Severity    jsonText `json:"severity"`
	Category    jsonText `json:"category"`
	Object      jsonText `json:"object_name"`
	Path        jsonText `json:"object_path"`
	Description jsonText `json:"description"`
	Timestamp   jsonText `json:"timestamp"`
}

// toEvent accepts both shapes: 6.12 has the code as "type" and milliseconds; 6.24 has it as "event_type", the
// type of the object as "type", and seconds.
func (e *eventJSON) toEvent(zone *time.Location) (Event, error) {
	code, object := e.EventType, e.Type
	if code == "" {
		code, object = e.Type, ""
	}
	if e.Name == "" && code == "" {
		return Event{}, errorf(KindMalformed, "event %q: a name or a type is expected", string(e.ID))
	}
	return Event{ID: string(e.ID), Code: string(code), Name: string(e.Name), Severity: string(e.Severity), Category: string(e.Category),
		Object: string(e.Object), ObjectType: string(object), Path: string(e.Path), Description: string(e.Description),
		Written: string(e.Timestamp), At: parseWallTime(string(e.Timestamp), zone)}, nil
}

// ObjectIdentity returns the port, or the node, of an object's name: a GUID of 16 digits, followed for a port
// by an underscore and its number. It returns false for other names. A number of 0 means that there is none.
func ObjectIdentity(object string) (Identity, bool) {
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

// parseWallTime parses a time of the REST interface: of a wall clock, with or without a fraction of a second,
// or a number since 1970.
func parseWallTime(s string, zone *time.Location) time.Time {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05", time.ANSIC} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t
		}
	}
	return parseUnixTime([]byte(s))
}

// FetchEvents returns all events that UFM keeps.
func (c *Client) FetchEvents(ctx context.Context, zone *time.Location) ([]Event, error) {
	var out []Event
	var bad error
	err := fetchList(ctx, c, "/app/events", func(j eventJSON) {
		e, err := j.toEvent(zone)
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

// Alarm is an open alarm.
type Alarm struct {
	ID string
	// Code is the number of the type of the event that raised it (EventKind).
	Code, Name, Severity string
	// Object is the object of the alarm, Path its place.
	Object, Path, Reason string
	At                   time.Time
}

// ObjectDisplayName returns the object's path or, if there is none, its name.
func (a *Alarm) ObjectDisplayName() string {
	if a.Path != "" {
		return a.Path
	}
	return a.Object
}

// alarmJSON has both shapes: 6.12 has "related_object_..." where 6.17 and later have "object_...".
type alarmJSON struct {
	ID            jsonText `json:"id"`
	EventType     jsonText `json:"event_type"`
	Name          jsonText `json:"name"`
	Severity      jsonText `json:"severity"`
	Object        jsonText `json:"object_name"`
	Path          jsonText `json:"object_path"`
	RelatedObject jsonText `json:"related_object_name"`
	RelatedPath   jsonText `json:"related_object_path"`
	Reason        jsonText `json:"reason"`
	Description   jsonText `json:"description"`
	Timestamp     jsonText `json:"timestamp"`
}

func (a *alarmJSON) toAlarm(zone *time.Location) (Alarm, error) {
	if a.Name == "" && a.EventType == "" {
		return Alarm{}, errorf(KindMalformed, "alarm %q: a name or an event_type is expected", string(a.ID))
	}
	return Alarm{ID: string(a.ID), Code: string(a.EventType), Name: string(a.Name), Severity: string(a.Severity), Object: string(cmp.Or(a.Object, a.RelatedObject)),
		Path: string(cmp.Or(a.Path, a.RelatedPath)), Reason: string(cmp.Or(a.Reason, a.Description)), At: parseWallTime(string(a.Timestamp), zone)}, nil
}

// FetchAlarms returns all open alarms.
func (c *Client) FetchAlarms(ctx context.Context, zone *time.Location) ([]Alarm, error) {
	var out []Alarm
	var bad error
	err := fetchList(ctx, c, "/app/alarms", func(j alarmJSON) {
		a, err := j.toAlarm(zone)
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

// VPort is a virtual port of the physical port whose identity it has.
type VPort struct {
	Identity
	State string
}

// FetchVPorts returns all virtual ports. bad is the number of those whose port cannot be parsed.
func (c *Client) FetchVPorts(ctx context.Context) (out []VPort, bad int, err error) {
	err = fetchList(ctx, c, "/resources/vports", func(j struct {
		GUID        jsonText `json:"port_guid"`
		Number      jsonText `json:"physical_port_number"`
		State       jsonText `json:"virtual_port_state"`
		Description jsonText `json:"node_description"`
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

// CountJobs returns the number of jobs that UFM lists, by status ("Running", "Completed", "Completed With
// Errors").
func (c *Client) CountJobs(ctx context.Context) (map[string]int, error) {
	out := map[string]int{}
	err := fetchList(ctx, c, "/jobs", func(j struct {
		Status jsonText `json:"Status"`
	}) {
		out[string(j.Status)]++
	})
	return out, err
}

// UnhealthyPort is a port that the subnet manager holds to be unhealthy.
type UnhealthyPort struct {
	Identity
	Condition string
}

// FetchUnhealthyPorts returns all unhealthy ports. bad is the number of those whose GUID or number cannot be
// parsed.
func (c *Client) FetchUnhealthyPorts(ctx context.Context) (out []UnhealthyPort, bad int, err error) {
	err = fetchList(ctx, c, "/app/unhealthy_ports", func(j struct {
		GUID      jsonText `json:"UnhealthyGUID"`
		Number    jsonText `json:"UnhealthyPortNumber"`
		Node      jsonText `json:"UnhealthyNode"`
		Type      jsonText `json:"UnhealthyNodeType"`
		Condition jsonText `json:"Condition"`
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

// FetchVersion returns the version of UFM.
func (c *Client) FetchVersion(ctx context.Context) (string, error) {
	var v struct {
		Release jsonText `json:"ufm_release_version"`
	}
	err := c.Get(ctx, c.BasePath()+"/app/ufm_version", func(r io.Reader) error {
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
	Name jsonText `json:"system_name"`
	GUID jsonText `json:"system_guid"`
	Own  jsonText `json:"guid"`
	Type jsonText `json:"type"`
}

// PortInfo is a port of resources/ports.
type PortInfo struct {
	Name        jsonText `json:"name"`
	GUID        jsonText `json:"guid"`
	Number      jsonText `json:"number"`
	SystemID    jsonText `json:"systemID"`
	System      jsonText `json:"system_name"`
	Description jsonText `json:"node_description"`
	State       jsonText `json:"logical_state"`
	Physical    jsonText `json:"physical_state"`
	Speed       jsonText `json:"active_speed"`
	Width       jsonText `json:"active_width"`
	Peer        jsonText `json:"peer"`
	LID         jsonText `json:"lid"`
	// The supported and enabled speeds and widths, as lists.
	EnabledSpeed jsonText `json:"enabled_speed"`
	EnabledWidth jsonText `json:"enabled_width"`
}

// LinkInfo is a cable of resources/links.
type LinkInfo struct {
	SourceGUID      jsonText `json:"source_guid"`
	SourcePort      jsonText `json:"source_port"`
	DestinationGUID jsonText `json:"destination_guid"`
	DestinationPort jsonText `json:"destination_port"`
	Width           jsonText `json:"width"`
}

// FetchInventory requests systems, ports and links.
func (c *Client) FetchInventory(ctx context.Context) (*Inventory, error) {
	v := &Inventory{}
	if err := fetchList(ctx, c, "/resources/systems", func(s System) { v.Systems = append(v.Systems, s) }); err != nil {
		return nil, err
	}
	if err := fetchList(ctx, c, "/resources/ports", func(p PortInfo) { v.Ports = append(v.Ports, p) }); err != nil {
		return nil, err
	}
	if err := fetchList(ctx, c, "/resources/links", func(l LinkInfo) { v.Links = append(v.Links, l) }); err != nil {
		return nil, err
	}
	return v, v.indexPorts()
}
