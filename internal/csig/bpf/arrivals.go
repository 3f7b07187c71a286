package bpf

import (
	"bytes"
	"hash/maphash"
)

// arrivals holds the tags that have arrived and were not fetched. Each packet has its place in one row of a table. In a full
// row, the oldest tag gives way.
type arrivals struct {
	seed maphash.Seed
	rows []arrivalRow
	now  uint64
}

// rowSize is the number of tags in a row.
const rowSize = 8

type arrivalRow [rowSize]struct {
	added uint64 // rises from tag to tag; 0: free
	event [eventLen]byte
}

// newArrivals returns a table with room for at least so many tags.
func newArrivals(n int) *arrivals {
	return &arrivals{seed: maphash.MakeSeed(), rows: make([]arrivalRow, (n+rowSize-1)/rowSize)}
}

// rowOf returns the row of a packet.
func (a *arrivals) rowOf(key []byte) *arrivalRow {
	return &a.rows[maphash.Bytes(a.seed, key)%uint64(len(a.rows))]
}

// add puts an event of the sink into the table. One of the same packet gives way to it.
func (a *arrivals) add(event *[eventLen]byte) {
	row := a.rowOf(event[:probeLen])
	place := 0
	for i := range row {
		if row[i].added != 0 && bytes.Equal(row[i].event[:probeLen], event[:probeLen]) {
			place = i
			break
		}
		if row[i].added < row[place].added {
			place = i
		}
	}
	a.now++
	row[place].added, row[place].event = a.now, *event
}

// take removes the event of a packet from the table and returns it, until the next call of add. It returns nil if there is none.
func (a *arrivals) take(key *probeKey) *[eventLen]byte {
	row := a.rowOf(key[:])
	for i := range row {
		if row[i].added != 0 && bytes.Equal(row[i].event[:probeLen], key[:]) {
			row[i].added = 0
			return &row[i].event
		}
	}
	return nil
}
