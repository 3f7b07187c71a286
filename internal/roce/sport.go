package roce

import "fmt"

// Rule is the rule by which a driver chooses the UDP source port of an unreliable datagram.
type Rule int

// Rules. The zero Rule means that the rule is not known.
const (
	// ByLabel derives the port from the flow label of the address handle.
	ByLabel Rule = iota + 1
	// ByQueuePair derives the port from the own queue pair's number, whatever the flow.
	ByQueuePair
)

// rules holds the rules that were read in sources, by the name of the driver. The rules of other drivers are not known.
var rules = map[string]Rule{
	// rdma-core providers/mlx5/verbs.c, mlx5_ah_set_udp_sport; kernel
	// drivers/infiniband/hw/mlx5/ah.c, mlx5_ah_get_udp_sport.
	"mlx5_core": ByLabel,
	// rdma-core providers/hns/hns_roce_u_verbs.c and kernel
	// drivers/infiniband/hw/hns/hns_roce_ah.c, get_ah_udp_sport in both.
	"hns3": ByLabel,
	// drivers/infiniband/sw/rxe/rxe_qp.c, rxe_qp_init_req. An address handle has no influence: rxe_net.c, prepare4 and
	// prepare6.
	"rdma_rxe": ByQueuePair,
}

const firstPort = 0xc000 // IB_ROCE_UDP_ENCAP_VALID_PORT_MIN, include/rdma/ib_verbs.h

// RuleOf returns the rule of a driver, by the name of its kernel module. It returns an error if the rule is not known.
func RuleOf(driver string) (Rule, error) {
	if r, ok := rules[driver]; ok {
		return r, nil
	}
	return 0, fmt.Errorf("driver %q: how it chooses the UDP source port is not known, want mlx5_core, hns3 or rdma_rxe", driver)
}

// SourcePort returns the UDP source port of a queue pair's packets with a flow label that is not 0.
func (r Rule) SourcePort(label, qpn uint32) uint16 {
	if r == ByQueuePair {
		// hash_32(qpn, 14), include/linux/hash.h
		return firstPort + uint16(qpn*0x61c88647>>(32-14))
	}
	// rdma_flow_label_to_udp_sport, include/rdma/ib_verbs.h
	return firstPort | uint16(label&0x3fff^label&0xfc000>>14)
}

// ConnectedPort returns the UDP source port of the packets of a connected queue pair, by its flow label and the numbers of
// both queue pairs: rdma_get_udp_sport, include/rdma/ib_verbs.h. It is the same in both directions where the label is 0, which
// is what NCCL sets. The drivers mlx5_core, hns3, and rdma_rxe follow it, the last one once the queue pair was given a
// routing header.
func ConnectedPort(label, local, remote uint32) uint16 {
	if label == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		label = uint32(v & maxLabel)
	}
	return ByLabel.SourcePort(label, 0)
}
