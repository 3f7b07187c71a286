package ufmreceiver

import (
	"context"
	"strconv"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/graylink/graylink/internal/ufm"
)

// Names of log records.
const (
	eventRecord = "ufm.event"
	alarmRecord = "ufm.alarm"
	alarmOver   = "ufm.alarm.over"
)

const (
	maxRecords = 1000    // log records that are passed on at once
	maxText    = 8 << 10 // octets of a text in a record
)

// severities maps UFM's severities to OpenTelemetry's numbers, with gaps between them. They are those of syslog
// in the data model where UFM has the same word; minor is more than a warning and not yet an error (ITU-T X.733
// section 8.1.2.3).
var severities = map[string]plog.SeverityNumber{
	"Info": plog.SeverityNumberInfo, "Warning": plog.SeverityNumberWarn, "Minor": plog.SeverityNumberWarn2,
	"Major": plog.SeverityNumberError, "Critical": plog.SeverityNumberError2,
}

// recordBatch collects log records until they are passed on.
type recordBatch struct {
	logs    plog.Logs
	records plog.LogRecordSlice
}

func newRecordBatch() *recordBatch {
	l := plog.NewLogs()
	scope := l.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty()
	scope.Scope().SetName(scopeName)
	return &recordBatch{l, scope.LogRecords()}
}

// addRecord adds a log record.
func (p *restReader) addRecord(to *recordBatch, name, severity, body string, at, now time.Time, object string, texts ...[2]string) {
	r := to.records.AppendEmpty()
	r.SetEventName(name)
	r.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	if !at.IsZero() {
		r.SetTimestamp(pcommon.NewTimestampFromTime(at))
	}
	r.SetSeverityText(truncateText(severity))
	r.SetSeverityNumber(severities[ufm.SeverityKind(severity)]) // 0, unspecified, for others
	r.Body().SetStr(truncateText(body))
	a := r.Attributes()
	a.PutStr("target", p.target.name)
	a.PutStr("subnet", p.subnetName())
	for _, t := range texts {
		if t[1] != "" {
			a.PutStr(t[0], truncateText(t[1]))
		}
	}
	id, about := ufm.ObjectIdentity(object)
	if !about {
		return
	}
	a.PutStr("guid", id.Port.String())
	switch n, known := p.r.names.NameOf(id); {
	case id.Number == 0: // a node
	case !known:
		a.PutStr("port", strconv.Itoa(id.Number))
	case n.NIC != "":
		a.PutStr("nic", n.NIC)
	default:
		a.PutStr("switch", n.Switch)
		a.PutStr("port", n.Port)
	}
}

// truncateText returns a text of at most maxText octets, cut between characters.
func truncateText(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// deliverLogs passes records on. taken is true if they are finished: accepted, or refused for good. Records
// refused for good are counted, and are an error.
func (p *restReader) deliverLogs(ctx context.Context, l *recordBatch) (taken bool, err error) {
	n := l.records.Len()
	if n == 0 {
		return true, nil
	}
	if err = p.r.logs.ConsumeLogs(ctx, l.logs); err == nil {
		*p.target.records += uint64(n)
		return true, nil
	}
	return consumererror.IsPermanent(err), &ufm.Error{Kind: ufm.KindConsumer, Err: err}
}

// logEvents passes on the events that the logs do not have yet. Those that are refused for now are tried again
// with the next reading, for as long as UFM lists them.
func (p *restReader) logEvents(ctx context.Context, all []ufm.Event) error {
	if p.r.logs == nil {
		p.logged.Events.RememberEvents(all)
		return p.saveState()
	}
	fail := failure{target: p.target}
	now := time.Now()
	for fresh := p.logged.Events.NewEvents(all); len(fresh) > 0; {
		part := fresh[:min(len(fresh), maxRecords)]
		fresh = fresh[len(part):]
		l := newRecordBatch()
		for _, e := range part {
			change, _ := e.ChangeReason()
			body := e.Description
			if body == "" {
				body = e.Name
			}
			p.addRecord(l, eventRecord, e.Severity, body, e.At, now, e.Object, [2]string{"ufm.id", e.ID}, [2]string{"ufm.type", e.Code}, [2]string{"ufm.kind", ufm.EventKind(e.Code)},
				[2]string{"ufm.name", e.Name}, [2]string{"ufm.category", e.Category}, [2]string{"ufm.object", e.Object}, [2]string{"ufm.object_type", e.ObjectType},
				[2]string{"ufm.path", e.Path}, [2]string{"change", string(change)})
		}
		taken, err := p.deliverLogs(ctx, l)
		fail.addError(err)
		if !taken {
			fail.addError(p.saveState())
			return fail.first
		}
		p.logged.Events.RememberEvents(part)
	}
	p.logged.Events.RememberEvents(all)
	fail.addError(p.saveState())
	return fail.first
}

// logAlarms passes on the alarms that were raised and those that are over.
func (p *restReader) logAlarms(ctx context.Context, all []ufm.Alarm) error {
	raised, over := p.logged.Alarms.RaisedAndCleared(all)
	if p.r.logs == nil {
		p.logged.Alarms.UpdateOpen(raised, over)
		return p.saveState()
	}
	fail := failure{target: p.target}
	now := time.Now()
	deliver := func(list []ufm.Alarm, name string, mark func([]ufm.Alarm)) (more bool) {
		for len(list) > 0 {
			part := list[:min(len(list), maxRecords)]
			list = list[len(part):]
			l := newRecordBatch()
			for _, a := range part {
				severity, at := a.Severity, a.At
				if name == alarmOver {
					severity, at = "Info", time.Time{} // UFM does not report when it ended
				}
				body := a.Reason
				if body == "" {
					body = a.Name
				}
				p.addRecord(l, name, severity, body, at, now, a.Object, [2]string{"ufm.id", a.ID}, [2]string{"ufm.type", a.Code}, [2]string{"ufm.kind", ufm.EventKind(a.Code)},
					[2]string{"ufm.name", a.Name}, [2]string{"ufm.object", a.Object}, [2]string{"ufm.path", a.Path})
			}
			taken, err := p.deliverLogs(ctx, l)
			fail.addError(err)
			if !taken {
				return false
			}
			mark(part)
		}
		return true
	}
	if deliver(over, alarmOver, func(part []ufm.Alarm) { p.logged.Alarms.UpdateOpen(nil, part) }) {
		deliver(raised, alarmRecord, func(part []ufm.Alarm) { p.logged.Alarms.UpdateOpen(part, nil) })
	}
	fail.addError(p.saveState())
	return fail.first
}

// saveState saves what was reported, if the configuration names a file.
func (p *restReader) saveState() error {
	if p.state == nil {
		return nil
	}
	if err := p.state.Save(p.logged); err != nil {
		return &ufm.Error{Kind: ufm.KindState, Err: err}
	}
	return nil
}
