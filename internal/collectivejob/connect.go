package collectivejob

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// connect connects the rank with those it sends to and those it receives from.
func (w *worker) connect(ctx context.Context) error {
	own := w.o.Ranks[w.o.Number].Address
	connecting, cancel := context.WithTimeout(ctx, w.o.Patience)
	defer cancel()
	ln, err := (&net.ListenConfig{}).Listen(connecting, "tcp", own.String())
	if err != nil {
		return fmt.Errorf("rank %d cannot receive: %w", w.o.Number, err)
	}
	defer ln.Close()
	stop := context.AfterFunc(connecting, func() { ln.Close() })
	defer stop()
	to, from := w.o.peers()
	var accepting sync.WaitGroup
	var refused error
	accepting.Go(func() { refused = w.accept(ln, from) })
	for _, peer := range to {
		conn, err := dial(connecting, own.Addr().AsSlice(), w.o.Ranks[peer].Address.String())
		if err == nil {
			_, err = conn.Write(binary.BigEndian.AppendUint32(nil, uint32(w.o.Number)))
		}
		if err != nil {
			ln.Close()
			accepting.Wait()
			return fmt.Errorf("rank %d cannot send to rank %d: %w", w.o.Number, peer, err)
		}
		s := newSender(peer, conn, cmp.Or(w.o.Slots, slots))
		w.sends = append(w.sends, s)
		go s.readControl() // ends with the connection
	}
	if accepting.Wait(); refused != nil {
		return fmt.Errorf("rank %d: not all ranks connected within %v: %w", w.o.Number, w.o.Patience, refused)
	}
	context.AfterFunc(ctx, w.interrupt)
	return nil
}

// dial connects, and tries again until the context ends, since the other rank may not have started.
func dial(ctx context.Context, from net.IP, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	for {
		conn, err := d.DialContext(ctx, "tcp", to)
		if err == nil {
			return conn, nil
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return nil, err
		}
	}
}

// accept takes one connection from each of the ranks. Any other is closed.
func (w *worker) accept(ln net.Listener, from []int) error {
	for missing := slices.Clone(from); len(missing) > 0; {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		var header [4]byte
		if err = conn.SetReadDeadline(time.Now().Add(time.Second)); err == nil {
			_, err = io.ReadFull(conn, header[:])
		}
		peer := int(binary.BigEndian.Uint32(header[:]))
		at := slices.Index(missing, peer)
		if err != nil || at < 0 || conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() != w.o.Ranks[peer].Address.Addr() {
			conn.Close()
			continue
		}
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		missing = slices.Delete(missing, at, at+1)
		w.receives = append(w.receives, &receiver{peer: peer, conn: conn, stream: bufio.NewReaderSize(conn, chunkBytes), slots: cmp.Or(w.o.Slots, slots)})
	}
	return nil
}

// interrupt ends what waits for a connection.
func (w *worker) interrupt() {
	w.each(func(c net.Conn) { _ = c.SetDeadline(time.Unix(1, 0)) })
}

// close closes the connections.
func (w *worker) close() {
	w.each(func(c net.Conn) { c.Close() })
	for _, s := range w.sends {
		<-s.gone
	}
}

func (w *worker) each(do func(net.Conn)) {
	for _, s := range w.sends {
		do(s.conn)
	}
	for _, r := range w.receives {
		do(r.conn)
	}
}
