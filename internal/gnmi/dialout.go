package gnmi

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	tpb "github.com/openconfig/grpctunnel/proto/tunnel"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/pki"
)

// Dial-out: switches connect to this process.
//
//  1. A caller is authenticated by a client certificate, by the token, or, where that
//     is configured, by its address alone. Without any of these the process listens only on
//     the loopback.
//  2. A caller has the target that it is listed for. Without a list it has those whose
//     names its certificate has. All others are refused and counted.
//  3. By a tunnel (openconfig/grpctunnel) this process is the gNMI client, as it is
//     when it dials. Callers cannot reach anything by it: their own requests for sessions,
//     which the protocol has, are refused.
//  4. By Publish (SONiC's gNMIDialOut) the switch sends what it is configured to send.
//  5. A registration of a target replaces an earlier one, whose tunnel may be dead.
//
// The library's own server passes sessions from one caller to another's target, does
// not know which caller registers a target, and keeps an entry of every
// session. So only its generated messages are used here, and its client in tests.

// DialOut configures switches that connect by themselves.
type DialOut struct {
	// Listen is host:port; empty means that switches cannot connect.
	Listen string    `mapstructure:"listen"`
	TLS    ServerTLS `mapstructure:"tls"`
	// TokenFile holds a bearer token that every call must have.
	TokenFile string `mapstructure:"token_file"`
	// Targets lists the accepted targets; empty means those that a certificate names.
	Targets []Caller `mapstructure:"targets"`
	// ByAddress identifies a caller without certificate and token by its address.
	ByAddress bool `mapstructure:"insecure_by_address"`
	// MaxTargets bounds the number of targets that certificates name.
	MaxTargets int `mapstructure:"max_targets"`
	// MaxConnections bounds the connections, MaxStreams the streams of each.
	MaxConnections int `mapstructure:"max_connections"`
	MaxStreams     int `mapstructure:"max_streams"`
	// MaxMessage bounds a message, in bytes.
	MaxMessage int `mapstructure:"max_message_bytes"`
}

// ServerTLS configures how this process and its callers are authenticated.
type ServerTLS struct {
	Cert string `mapstructure:"cert_file"`
	Key  string `mapstructure:"key_file"`
	// ClientCA has the authorities of callers' certificates, which are then required.
	ClientCA string `mapstructure:"client_ca_file"`
}

// Caller represents a switch that is expected to connect.
type Caller struct {
	ID          string `mapstructure:"id"`          // the target that it registers
	Name        string `mapstructure:"name"`        // the label switch; empty means ID
	Certificate string `mapstructure:"certificate"` // a name in its certificate; empty means ID
	Address     string `mapstructure:"address"`     // IP address or prefix of its connections; empty means any
}

func (c Caller) switchName() string {
	if c.Name != "" {
		return c.Name
	}
	return c.ID
}

// allowsAddress reports whether the caller may connect from an address.
func (c Caller) allowsAddress(addr netip.Addr) bool {
	if c.Address == "" {
		return true
	}
	p, err := prefixOf(c.Address)
	return err == nil && p.Contains(addr)
}

func prefixOf(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// validate returns an error that names the first key with a wrong value. names are those of other targets.
func (d *DialOut) validate(names map[string]int) error {
	wrong := func(key, format string, args ...any) error {
		return fmt.Errorf("dial_out."+key+": "+format, args...)
	}
	if d.Listen == "" {
		if d.TLS != (ServerTLS{}) || d.TokenFile != "" || len(d.Targets) > 0 || d.ByAddress {
			return wrong("listen", "host:port is expected where anything else of dial_out is set")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(d.Listen)
	if err != nil || port == "" {
		return wrong("listen", "host:port is expected, not %q", d.Listen)
	}
	if (d.TLS.Cert == "") != (d.TLS.Key == "") {
		return wrong("tls", "cert_file and key_file are expected together")
	}
	if d.TLS.ClientCA != "" && d.TLS.Cert == "" {
		return wrong("tls.client_ca_file", "cert_file and key_file are expected with it")
	}
	ip, _ := netip.ParseAddr(host)
	loopback := ip.IsLoopback() || host == "localhost"
	if d.TLS.Cert == "" && !loopback {
		return wrong("tls", "without TLS only the loopback is listened on, not %q", d.Listen)
	}
	if d.TLS.Cert == "" && d.TokenFile != "" {
		return wrong("token_file", "tokens are taken over TLS only")
	}
	if d.TLS.ClientCA == "" && d.TokenFile == "" && !d.ByAddress && !loopback {
		return wrong("tls.client_ca_file", "callers' certificates, a token_file or insecure_by_address is expected")
	}
	if d.TLS.ClientCA == "" && len(d.Targets) == 0 {
		return wrong("targets", "a list is expected where no certificate names the caller (tls.client_ca_file)")
	}
	ids := map[string]int{}
	for i, c := range d.Targets {
		at := func(key string) string { return fmt.Sprintf("targets[%d].%s", i, key) }
		if c.ID == "" {
			return wrong(at("id"), "the target that the switch registers is expected")
		}
		if first, twice := ids[c.ID]; twice {
			return wrong(at("id"), "%q is that of targets[%d] as well", c.ID, first)
		}
		ids[c.ID] = i
		if !validSwitchName(c.switchName()) {
			return wrong(at("name"), "a switch's name holds no /, :, >, @, # or white space: %q", c.switchName())
		}
		if _, twice := names[c.switchName()]; twice {
			return wrong(at("name"), "%q is the name of another target as well", c.switchName())
		}
		names[c.switchName()] = i
		if c.Certificate != "" && d.TLS.ClientCA == "" {
			return wrong(at("certificate"), "tls.client_ca_file is expected with it")
		}
		if _, err := prefixOf(c.Address); c.Address != "" && err != nil {
			return wrong(at("address"), "an IP address or a prefix is expected, not %q", c.Address)
		}
		if c.Address == "" && d.ByAddress {
			return wrong(at("address"), "an address is expected with insecure_by_address")
		}
	}
	for _, b := range []struct {
		key         string
		v, from, to int
	}{
		{"max_targets", d.MaxTargets, 1, 1 << 16}, {"max_connections", d.MaxConnections, 1, 1 << 16}, {"max_streams", d.MaxStreams, 1, 1 << 16},
		{"max_message_bytes", d.MaxMessage, 1 << 10, maxMessage},
	} {
		if b.v < b.from || b.v > b.to {
			return wrong(b.key, "%d to %d is expected, not %d", b.from, b.to, b.v)
		}
	}
	return nil
}

// validSwitchName reports whether a name is valid for a switch (contracts, element identifiers).
func validSwitchName(s string) bool {
	return s != "" && len(s) <= 255 && !strings.ContainsAny(s, "/:>@# \t\r\n")
}

// Kinds of refusals, as they are counted.
const (
	refusedTLS      = "tls"      // a failed handshake: no certificate, another authority's, no TLS
	refusedAuth     = "auth"     // no token, or a wrong one
	refusedStranger = "stranger" // a target that the caller does not have
	refusedLimit    = "limit"    // more targets than allowed
	refusedRequest  = "request"  // a request that callers may not send, or a protocol other than gNMI
)

var refusals = []string{refusedAuth, refusedLimit, refusedRequest, refusedStranger, refusedTLS}

// dialOut is the listening side.
type dialOut struct {
	tpb.UnimplementedTunnelServer
	agent    *Agent
	config   *DialOut
	log      *slog.Logger
	warnings *rate.Limiter // bounds what callers can add to the log
	server   *grpc.Server
	listener net.Listener
	wg       sync.WaitGroup

	connections atomic.Int64
	nextConn    atomic.Uint64
	refused     [8]atomic.Uint64 // by the index in refusals
	streams     atomic.Int64     // of Publish

	mu             sync.Mutex
	callers        map[string]*session // by target's id
	tag            int32
	pendingTunnels map[tunnelKey]chan<- openResult
}

// tunnelKey identifies a session that was requested from a tunnel.
type tunnelKey struct {
	conn uint64
	tag  int32
}

// openResult is the stream of such a session, or the reason why there is none.
type openResult struct {
	conn net.Conn
	err  error
}

// publishService is SONiC's service (sonic-gnmi, proto/dial_out.proto). The collector's possible answers are
// not used, so no message of its own is needed.
var publishService = grpc.ServiceDesc{
	ServiceName: "gnmi.sonic.gNMIDialOut", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Publish", ClientStreams: true, ServerStreams: true,
		Handler: func(d any, stream grpc.ServerStream) error { return d.(*dialOut).handlePublish(stream) }}},
}

// listenDialOut creates the listening side; it does not serve yet.
func (a *Agent) listenDialOut(log *slog.Logger) error {
	c := &a.config.DialOut
	d := &dialOut{agent: a, config: c, log: log, warnings: rate.NewLimiter(rate.Every(time.Second), 10), callers: map[string]*session{},
		pendingTunnels: map[tunnelKey]chan<- openResult{}}
	opts := []grpc.ServerOption{
		grpc.ConnectionTimeout(a.config.Timeout), grpc.MaxRecvMsgSize(c.MaxMessage), grpc.MaxConcurrentStreams(uint32(c.MaxStreams)), //nolint:gosec // at most 65536
		grpc.MaxHeaderListSize(16 << 10), grpc.InitialWindowSize(1 << 20), grpc.InitialConnWindowSize(1 << 20), grpc.WaitForHandlers(true), grpc.StatsHandler(d),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: 30 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if c.TLS.Cert != "" {
		config, err := c.TLS.tlsConfig(c.ByAddress || c.TokenFile != "")
		if err != nil {
			return fmt.Errorf("dial_out.tls: %w", err)
		}
		opts = append(opts, grpc.Creds(&countingCredentials{credentials.NewTLS(config), d}))
	}
	if c.TokenFile != "" {
		if _, err := readSecret(c.TokenFile); err != nil {
			return fmt.Errorf("dial_out.token_file: %w", err)
		}
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("dial_out.listen: %w", err)
	}
	d.listener, d.server = l, grpc.NewServer(opts...)
	tpb.RegisterTunnelServer(d.server, d)
	d.server.RegisterService(&publishService, d)
	for _, t := range c.Targets {
		d.callers[t.ID] = a.addTarget(t.switchName(), t.ID, newOfferSlot(), log)
	}
	a.dialOut = d
	return nil
}

func (d *dialOut) serveConnections() {
	d.wg.Go(func() {
		if err := d.server.Serve(netutil.LimitListener(d.listener, d.config.MaxConnections)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			d.log.Error("cannot serve connections of switches", "err", err)
		}
	})
}

// close closes all connections and waits for their calls.
func (d *dialOut) close() {
	d.server.Stop()
	d.wg.Wait()
}

// DialOutAddress returns the address to which switches connect, or "" if they cannot.
func (a *Agent) DialOutAddress() string {
	if a.dialOut == nil {
		return ""
	}
	return a.dialOut.listener.Addr().String()
}

// tlsConfig returns the TLS configuration. Files are read at every handshake, so that they may be renewed.
// Certificates of callers are optional only where callers can be identified in another way.
func (s ServerTLS) tlsConfig(optional bool) (*tls.Config, error) {
	read := func() (*tls.Config, error) {
		pair, err := loadKeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, err
		}
		c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
		if s.ClientCA == "" {
			return c, nil
		}
		if c.ClientCAs, err = loadCertPool(s.ClientCA); err != nil {
			return nil, err
		}
		if c.ClientAuth = tls.RequireAndVerifyClientCert; optional {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
		return c, nil
	}
	c, err := read()
	if err != nil {
		return nil, err
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return read() }
	return c, nil
}

// countingCredentials counts failed handshakes.
type countingCredentials struct {
	credentials.TransportCredentials
	d *dialOut
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *countingCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		_ = c.d.recordRefusal(refusedTLS, codes.Unauthenticated, "handshake with %v: %v", conn.RemoteAddr(), err)
	}
	return out, info, err
}

// recordRefusal counts a refusal, logs it, and returns its error.
func (d *dialOut) recordRefusal(kind string, code codes.Code, format string, args ...any) error {
	d.refused[slices.Index(refusals, kind)].Add(1)
	text := fmt.Sprintf(format, args...)
	if d.warnings.Allow() {
		d.log.Warn("refused a switch that connected", "kind", kind, "why", text)
	}
	return status.Error(code, text)
}

// Connections are numbered, because a tunnel's streams must belong to the connection that registered its
// target.
type connectionKey struct{}

// TagConn implements stats.Handler.
func (d *dialOut) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, d.nextConn.Add(1))
}

// HandleConn implements stats.Handler.
func (d *dialOut) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		d.connections.Add(1)
	case *stats.ConnEnd:
		d.connections.Add(-1)
	}
}

// TagRPC implements stats.Handler.
func (d *dialOut) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (d *dialOut) HandleRPC(context.Context, stats.RPCStats) {}

// caller identifies the other side of a call.
type caller struct {
	conn  uint64
	addr  netip.Addr
	names []string // DNS names and addresses of its certificate
	token bool
}

func (c caller) String() string {
	if len(c.names) > 0 {
		return c.names[0] + " at " + c.addr.String()
	}
	return c.addr.String()
}

// identifyCaller returns the caller of a call, or an error if it is refused.
func (d *dialOut) identifyCaller(ctx context.Context) (caller, error) {
	c := caller{conn: ctx.Value(connectionKey{}).(uint64)}
	if p, ok := peer.FromContext(ctx); ok {
		if a, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
			c.addr = a.Addr().Unmap()
		}
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			c.names = pki.NamesOf(info.State.VerifiedChains[0][0])
		}
	}
	if d.config.TokenFile == "" || len(c.names) > 0 {
		return c, nil
	}
	want, err := readSecret(d.config.TokenFile)
	if err != nil {
		return c, d.recordRefusal(refusedAuth, codes.Unavailable, "the token cannot be read: %v", err)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		c.token = c.token || subtle.ConstantTimeCompare([]byte(v), []byte("Bearer "+want)) == 1
	}
	if !c.token && !d.config.ByAddress {
		return c, d.recordRefusal(refusedAuth, codes.Unauthenticated, "%v: a certificate or a bearer token is expected", c)
	}
	return c, nil
}

// callerMatches reports whether a listed target belongs to a caller.
func (d *dialOut) callerMatches(c caller, t Caller) bool {
	if !t.allowsAddress(c.addr) {
		return false
	}
	if d.config.TLS.ClientCA == "" {
		return true // authenticated by the token, by the address, or on the loopback
	}
	if len(c.names) == 0 {
		return d.config.ByAddress || c.token
	}
	want := t.Certificate
	if want == "" {
		want = t.ID
	}
	return slices.Contains(c.names, want)
}

// sessionByID returns the session of the target that a caller registers; without an id, that of its only one.
func (d *dialOut) sessionByID(c caller, id string) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.config.Targets) > 0 {
		var found []string
		for _, t := range d.config.Targets {
			if (id == "" || t.ID == id) && d.callerMatches(c, t) {
				found = append(found, t.ID)
			}
		}
		if len(found) != 1 {
			return nil, d.recordRefusal(refusedStranger, codes.PermissionDenied, "%v: is not accepted as %q (%d targets fit)", c, id, len(found))
		}
		return d.callers[found[0]], nil
	}
	if id == "" && len(c.names) > 0 {
		id = c.names[0]
	}
	if !slices.Contains(c.names, id) || !validSwitchName(id) {
		return nil, d.recordRefusal(refusedStranger, codes.PermissionDenied, "%v: has no certificate of %q", c, id)
	}
	if s := d.callers[id]; s != nil {
		return s, nil
	}
	if len(d.callers) >= d.config.MaxTargets {
		return nil, d.recordRefusal(refusedLimit, codes.ResourceExhausted, "%v: max_targets %d are known", c, d.config.MaxTargets)
	}
	s := d.agent.addTarget(id, id, newOfferSlot(), d.log)
	if s == nil {
		return nil, d.recordRefusal(refusedStranger, codes.PermissionDenied, "%v: %q is the name of a target that is dialled", c, id)
	}
	d.callers[id] = s
	d.agent.readers.Go(func() { s.run(d.agent.ctx) })
	return s, nil
}

// handlePublish receives what a switch publishes.
func (d *dialOut) handlePublish(stream grpc.ServerStream) error {
	ctx := stream.Context()
	c, err := d.identifyCaller(ctx)
	if err != nil {
		return err
	}
	s, err := d.sessionByID(c, "")
	if err != nil {
		return err
	}
	d.streams.Add(1)
	defer d.streams.Add(-1)
	s.connects.Add(1)
	number := s.streams.Add(1)
	err = s.readPublished(ctx, stream, number)
	// What it sent on change is unknown now.
	s.queue <- message{session: s, stream: number}
	if err == nil || d.agent.ctx.Err() != nil {
		return err
	}
	kind := kindOf(err)
	s.errs[slices.Index(kinds, kind)].Add(1)
	if d.warnings.Allow() {
		s.log.Warn("stream of switch ended", "switch", s.name, "kind", kind, "err", err)
	}
	return status.Error(codes.Unavailable, err.Error())
}

// readPublished reads a stream of Publish to its end.
func (s *session) readPublished(ctx context.Context, stream grpc.ServerStream, number uint32) error {
	began := time.Now()
	for first := true; ; first = false {
		reply := &gpb.SubscribeResponse{}
		if err := stream.RecvMsg(reply); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if first {
			s.publishing.Add(1)
			defer s.publishing.Add(-1)
		}
		if err := s.handleResponse(ctx, reply, number, began); err != nil {
			return err
		}
	}
}
