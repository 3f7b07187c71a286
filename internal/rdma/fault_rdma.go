//go:build rdma && rdmafault && linux && cgo

package rdma

/*
#cgo CFLAGS: -DGL_FAULT
#include "verbs_load.h"
#include "verbs_rdma.h"
struct ibv_qp *gl_pair(struct gl_q *q);
static int fault(struct gl_q *q)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return ibv_modify_qp(gl_pair(q), &a, IBV_QP_STATE);
}
*/
import "C"

// Fault brings the queue pair into its error state, for tests on a device. It returns the error of the call.
func (c *cQueue) Fault() error {
	if e := C.fault(c.q); e != 0 {
		return c.fail("bring the queue pair into error", -e)
	}
	return nil
}
