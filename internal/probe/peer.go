package probe

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/stamp"
)

// answeredFlow represents what is known of the probes of one flow of a peer.
type answeredFlow struct {
	cfg      EdgeConfig
	received uint64
	arrived  int64 // time of the last one, monotonic nanoseconds; 0: never
}

// peer represents another node's NIC as seen from one NIC of this node.
type peer struct {
	cfg      PeerConfig
	rdma     bool                  // probed by RDMA, which both ends have; otherwise by UDP
	moved    bool                  // its port of InfiniBand has another LID or GID than under the configuration before
	edges    map[int]*edge         // by flow number
	answers  map[int]*answeredFlow // by the peer's flow number
	sessions bucket                // for new sessions
	traces   bucket                // for answers to trace packets
	forged   bucket                // for packets that fail verification, before the NIC's budget is used
	failures uint64                // packets that failed verification, until the peer is a forger
	forger   int                   // index among the NIC's forgers; 0: it is one of the others
	estimate stamp.ErrorEstimate   // error of its clock, from its last reply
	keys     keyRing
	life     *peerLife
	nameHash uint64 // hash of its name
	unbound  bool   // reports whether its last authentic packet carried no life number
}

// remoteAddr returns the peer's address, or its GID.
func (p *peer) remoteAddr() netip.Addr {
	if p.rdma {
		return rdma.CanonicalGID(p.cfg.RDMA.GID)
	}
	return p.cfg.Address
}

// setConfig gives the peer its configuration.
func (p *peer) setConfig(cfg *PeerConfig, byRDMA bool, asked []EdgeConfig, mono int64) {
	if p.keys.auth == nil || !slices.EqualFunc(p.cfg.Keys, cfg.Keys, func(a, b Key) bool { return a.ID == b.ID && string(a.Secret) == string(b.Secret) }) {
		p.keys = newKeyRing(cfg.Keys)
	}
	if p.cfg.Address != cfg.Address || p.rdma != byRDMA {
		p.forger, p.failures = 0, 0
	}
	p.moved = p.rdma && byRDMA && p.cfg.RDMA.LID != 0 && (p.cfg.RDMA.LID != cfg.RDMA.LID || p.cfg.RDMA.GID != cfg.RDMA.GID)
	p.cfg, p.rdma, p.nameHash = *cfg, byRDMA, nameHash(cfg.NIC)
	old := p.answers
	p.answers = make(map[int]*answeredFlow, len(asked))
	for _, a := range asked {
		o := old[a.Flow]
		if o == nil {
			o = &answeredFlow{}
		}
		o.cfg = a
		p.answers[a.Flow] = o
	}
	p.sessions = newBucket(1, float64(max(4, 4*len(p.answers))), mono)
}

// keyRing holds the keys that are shared with a peer.
type keyRing struct {
	auth     []*stamp.Authenticator
	verified int // index of the key that verified a packet last
}

func newKeyRing(keys []Key) (r keyRing) {
	for _, k := range keys {
		r.auth = append(r.auth, stamp.NewAuthenticator(k.Secret))
	}
	return r
}

// tryKeys runs parse with each key until one verifies, and begins with the key that verified last.
func (r *keyRing) tryKeys(parse func(*stamp.Authenticator) error) (*stamp.Authenticator, error) {
	var err error
	for i := range r.auth {
		k := (r.verified + i) % len(r.auth)
		if err = parse(r.auth[k]); !errors.Is(err, stamp.ErrHMAC) {
			r.verified = k
			return r.auth[k], err
		}
	}
	return nil, err
}

// sendKey returns the key that authenticates packets to the peer, or nil if there is none.
func (r *keyRing) sendKey() *stamp.Authenticator {
	if len(r.auth) == 0 {
		return nil
	}
	return r.auth[0]
}

// peersOf returns the peers of a NIC under its configuration, by address, or by GID as 16 octets. It keeps those of
// known that stay.
func peersOf(self *identity, known map[netip.Addr]*peer, hasRDMA bool, lives *nodeLives, mono int64) map[netip.Addr]*peer {
	byNIC := peersByNIC(known)
	wanted := map[string]bool{}
	for i := range self.node.Edges {
		if e := &self.node.Edges[i]; e.Src == self.cfg.NIC {
			wanted[e.Dst] = true
		}
	}
	asked := map[string][]EdgeConfig{}
	for i := range self.node.Answers {
		if e := &self.node.Answers[i]; e.Dst == self.cfg.NIC {
			wanted[e.Src] = true
			asked[e.Src] = append(asked[e.Src], *e)
		}
	}
	peers := make(map[netip.Addr]*peer, len(wanted))
	for i := range self.node.Peers {
		cfg := &self.node.Peers[i]
		byRDMA := hasRDMA && cfg.RDMA != nil
		at := cfg.Address
		if byRDMA {
			at = rdma.CanonicalGID(cfg.RDMA.GID)
		}
		if !wanted[cfg.NIC] || !byRDMA && (!at.IsValid() || !self.cfg.Address.IsValid() || at.Is4() != self.cfg.Address.Is4()) {
			continue
		}
		p := byNIC[cfg.NIC]
		if p == nil {
			p = &peer{edges: map[int]*edge{}, life: lives.lifeOf(fabric.OwnerOf(cfg.NIC)),
				traces: newBucket(traceReplies, traceReplies, mono), forged: newBucket(peerForgeries, peerForgeries, mono)}
		}
		p.setConfig(cfg, byRDMA, asked[cfg.NIC], mono)
		peers[at] = p
	}
	return peers
}

// peersByNIC returns the peers by the names of their NICs.
func peersByNIC(peers map[netip.Addr]*peer) map[string]*peer {
	byNIC := make(map[string]*peer, len(peers))
	for _, p := range peers {
		byNIC[p.cfg.NIC] = p
	}
	return byNIC
}
