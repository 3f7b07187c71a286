//go:build rdma && linux

#include "verbs_load.h"

#include "verbs_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* What verbs_cgo.go and struct gl_ah take for granted of verbs.h: the numbers of events and of link layers, and an address
   handle with the LID, the path bits and the service level of InfiniBand beside a global header (IBTA 11.2.2.1). */
_Static_assert(IBV_EVENT_PORT_ACTIVE == 9 && IBV_EVENT_PORT_ERR == 10 && IBV_EVENT_LID_CHANGE == 11 && IBV_EVENT_PKEY_CHANGE == 12 &&
		       IBV_EVENT_SM_CHANGE == 13 && IBV_EVENT_CLIENT_REREGISTER == 17 && IBV_EVENT_GID_CHANGE == 18,
	       "numbers of events");
_Static_assert(IBV_LINK_LAYER_INFINIBAND == 1 && IBV_LINK_LAYER_ETHERNET == 2 && IBV_PORT_ACTIVE == 4, "numbers of link layers and states");
_Static_assert(sizeof(((struct ibv_ah_attr *)0)->dlid) == 2 && sizeof(((struct ibv_ah_attr *)0)->sl) == 1 && sizeof(((struct ibv_ah_attr *)0)->src_path_bits) == 1 &&
		       sizeof(((struct ibv_ah_attr *)0)->is_global) == 1 && offsetof(struct ibv_ah_attr, grh) == 0 && offsetof(struct ibv_ah_attr, dlid) == 24 &&
		       sizeof(struct ibv_ah_attr) == 32,
	       "address handle");
_Static_assert(sizeof(((struct ibv_global_route *)0)->dgid) == 16 && offsetof(struct ibv_global_route, flow_label) == 16 && offsetof(struct ibv_global_route, sgid_index) == 20 &&
		       offsetof(struct ibv_global_route, hop_limit) == 21 && offsetof(struct ibv_global_route, traffic_class) == 22,
	       "global route");
_Static_assert(sizeof(struct ibv_grh) == GL_GRH, "global header before the payload");

/* Of a receive: the header that the device puts before the payload, and the payload. */
enum { SLOT = 1088, POLL = 32, SIGNAL = 16 };

/* One queue pair. The receive CQ is a thread's, which stamps what comes and puts it on a ring;
   the send CQ, both queues and the other end of the ring are the caller's, one call at a time. */
struct gl_q {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *rcq, *scq;
	struct ibv_cq_ex *rcqx, *scqx; /* the same, where they give time stamps */
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *mem; /* receive slots, then send slots */
	uint32_t rdepth, sdepth, max_inline, qkey;
	uint16_t pkey_index;
	_Atomic uint32_t mtu;
	int port, hardware, notify, stop;
	int64_t busy;
	pthread_t thread;
	int threaded;
	pthread_mutex_t taking; /* of the receive CQ */

	struct gl_in *ring; /* without data, which is in the slot */
	uint32_t *slot;
	_Atomic uint32_t head, tail;
	_Atomic uint64_t recv_errors[GL_STATUSES];

	uint64_t posted, completed; /* sends */
	uint32_t *ids; /* by place in the send queue */
	uint64_t send_errors[GL_STATUSES];
	uint32_t *again; /* receive slots to post anew */
	int nagain;
};

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t mono(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **all = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;
	if (!all)
		return NULL;
	errno = ENODEV;
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(all[i]), name)) {
			ctx = ibv_open_device(all[i]);
			break;
		}
	int e = errno;
	ibv_free_device_list(all);
	errno = e;
	return ctx;
}

int gl_devices(char *names, int stride, int most)
{
	int n = 0;
	struct ibv_device **all = ibv_get_device_list(&n);
	if (!all)
		return errno == ENOSYS ? 0 : -errno;
	if (n > most)
		n = most;
	for (int i = 0; i < n; i++)
		snprintf(names + i * stride, stride, "%s", ibv_get_device_name(all[i]));
	ibv_free_device_list(all);
	return n;
}

static int table(struct ibv_context *ctx, int port, struct gl_gid *out, int most)
{
	struct ibv_gid_entry *e = calloc(most, sizeof *e);
	if (!e)
		return -ENOMEM;
	/* It gives the entries of every port. */
	ssize_t n = ibv_query_gid_table(ctx, e, most, 0);
	int k = 0;
	for (ssize_t i = 0; i < n; i++) {
		if ((int)e[i].port_num != port)
			continue;
		memcpy(out[k].gid, e[i].gid.raw, 16);
		out[k].index = e[i].gid_index;
		out[k].type = e[i].gid_type;
		k++;
	}
	free(e);
	return n < 0 ? (int)n : k;
}

int gl_table(struct gl_q *q, struct gl_gid *out, int most) { return table(q->ctx, q->port, out, most); }

int gl_gids(const char *device, int port, struct gl_gid *out, int most)
{
	struct ibv_context *ctx = open_device(device);
	if (!ctx)
		return -errno;
	int n = table(ctx, port, out, most);
	ibv_close_device(ctx);
	return n;
}

static void push(struct gl_q *q, uint32_t slot, uint32_t len, uint32_t imm, uint32_t src, uint32_t flags, uint64_t hw)
{
	uint32_t t = atomic_load_explicit(&q->tail, memory_order_relaxed);
	struct gl_in *r = &q->ring[t % q->rdepth];
	r->stamp = now();
	r->hardware = hw;
	r->imm = imm;
	r->src_qpn = src;
	r->len = len;
	r->flags = flags;
	q->slot[t % q->rdepth] = slot;
	atomic_store_explicit(&q->tail, t + 1, memory_order_release);
}

/* move takes what the receive CQ has to the ring; how many came. A slot is on the ring once at most. */
static int move(struct gl_q *q)
{
	int n = 0;
	if (q->rcqx) {
		struct ibv_poll_cq_attr a = {0};
		if (ibv_start_poll(q->rcqx, &a))
			return 0;
		do {
			uint32_t f = 0, imm = 0;
			if (q->rcqx->status != IBV_WC_SUCCESS) {
				atomic_fetch_add(&q->recv_errors[q->rcqx->status % GL_STATUSES], 1);
				continue;
			}
			unsigned wf = ibv_wc_read_wc_flags(q->rcqx);
			if (wf & IBV_WC_GRH)
				f |= GL_HAS_GRH;
			if (wf & IBV_WC_WITH_IMM) {
				f |= GL_HAS_IMM;
				imm = be32toh(ibv_wc_read_imm_data(q->rcqx));
			}
			push(q, q->rcqx->wr_id, ibv_wc_read_byte_len(q->rcqx), imm, ibv_wc_read_src_qp(q->rcqx), f, ibv_wc_read_completion_ts(q->rcqx));
			n++;
		} while (!ibv_next_poll(q->rcqx));
		ibv_end_poll(q->rcqx);
		return n;
	}
	struct ibv_wc wc[POLL];
	for (;;) {
		int k = ibv_poll_cq(q->rcq, POLL, wc);
		for (int i = 0; i < k; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				atomic_fetch_add(&q->recv_errors[wc[i].status % GL_STATUSES], 1);
				continue;
			}
			uint32_t f = 0, imm = 0;
			if (wc[i].wc_flags & IBV_WC_GRH)
				f |= GL_HAS_GRH;
			if (wc[i].wc_flags & IBV_WC_WITH_IMM) {
				f |= GL_HAS_IMM;
				imm = be32toh(wc[i].imm_data);
			}
			push(q, wc[i].wr_id, wc[i].byte_len, imm, wc[i].src_qp, f, 0);
			n++;
		}
		if (k < POLL)
			return n;
	}
}

static int take(struct gl_q *q)
{
	pthread_mutex_lock(&q->taking);
	int n = move(q);
	pthread_mutex_unlock(&q->taking);
	return n;
}

static void tell(struct gl_q *q)
{
	uint64_t one = 1;
	if (write(q->notify, &one, sizeof one) < 0) {
		/* full: it is signalled already */
	}
}

static void *receive(void *arg)
{
	struct gl_q *q = arg;
	struct pollfd fds[2] = {{.fd = q->channel->fd, .events = POLLIN}, {.fd = q->stop, .events = POLLIN}};
	for (;;) {
		int64_t until = q->busy ? mono() + q->busy : 0;
		for (;;) {
			if (take(q)) {
				tell(q);
				if (q->busy)
					until = mono() + q->busy;
			} else if (!q->busy || mono() >= until) {
				break;
			}
			if (poll(&fds[1], 1, 0) > 0)
				return NULL;
		}
		/* Armed before it is looked at again: what comes between is not missed. */
		if (ibv_req_notify_cq(q->rcq, 0))
			return NULL;
		if (take(q)) {
			tell(q);
		}
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (fds[1].revents)
			return NULL;
		if (fds[0].revents) {
			struct ibv_cq *cq;
			void *c;
			if (!ibv_get_cq_event(q->channel, &cq, &c))
				ibv_ack_cq_events(cq, 1);
			else if (fds[0].revents & (POLLERR | POLLHUP))
				return NULL;
		}
	}
}

static int post_receives(struct gl_q *q, const uint32_t *slots, int n)
{
	struct ibv_recv_wr wr[POLL], *bad;
	struct ibv_sge sge[POLL];
	for (int at = 0; at < n;) {
		int k = n - at < POLL ? n - at : POLL;
		for (int i = 0; i < k; i++) {
			uint32_t s = slots[at + i];
			sge[i] = (struct ibv_sge){.addr = (uintptr_t)(q->mem + (size_t)s * SLOT), .length = SLOT, .lkey = q->mr->lkey};
			wr[i] = (struct ibv_recv_wr){.wr_id = s, .sg_list = &sge[i], .num_sge = 1, .next = i + 1 < k ? &wr[i + 1] : NULL};
		}
		int e = ibv_post_recv(q->qp, wr, &bad);
		if (e)
			return -e;
		at += k;
	}
	return 0;
}

static int ready(struct gl_q *q)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .pkey_index = q->pkey_index, .port_num = q->port, .qkey = q->qkey};
	int e = ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	if (e)
		return -e;
	uint32_t *all = malloc(q->rdepth * sizeof *all);
	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < q->rdepth; i++)
		all[i] = i;
	e = post_receives(q, all, q->rdepth);
	free(all);
	if (e)
		return e;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
	if ((e = ibv_modify_qp(q->qp, &a, IBV_QP_STATE)))
		return -e;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 0};
	return -ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* nth reads the number at the end of a name such as uverbs12. */
static int nth(const char *name)
{
	const char *p = name + strlen(name);
	while (p > name && p[-1] >= '0' && p[-1] <= '9')
		p--;
	return *p ? atoi(p) : -1;
}

int gl_open(const char *device, int port, uint16_t pkey, int pkey_index, uint32_t qkey, uint32_t depth, int64_t busy_ns, int notify_fd, struct gl_q **out, struct gl_info *info, const char **step)
{
	struct gl_q *q = calloc(1, sizeof *q);
	int e = -ENOMEM;
	*step = "allocate memory";
	if (!q)
		return e;
	q->stop = -1;
	pthread_mutex_init(&q->taking, NULL);
	q->notify = notify_fd;
	q->port = port;
	q->qkey = qkey;
	q->busy = busy_ns;
#define TRY(what, ok)                            \
	do {                                     \
		*step = what;                    \
		errno = 0;                       \
		if (!(ok)) {                     \
			e = errno ? -errno : -EIO; \
			goto failed;             \
		}                                \
	} while (0)
	TRY("ibv_open_device", q->ctx = open_device(device));
	TRY("fcntl of the asynchronous events", !fcntl(q->ctx->async_fd, F_SETFL, fcntl(q->ctx->async_fd, F_GETFL) | O_NONBLOCK));
	struct ibv_device_attr_ex dev;
	memset(&dev, 0, sizeof dev);
	TRY("ibv_query_device_ex", !(errno = ibv_query_device_ex(q->ctx, NULL, &dev)));
	struct ibv_port_attr pa;
	TRY("ibv_query_port", !(errno = ibv_query_port(q->ctx, port, &pa)));
	atomic_store(&q->mtu, 128u << pa.active_mtu);
	int found = -1;
	for (int i = 0; i < pa.pkey_tbl_len && found < 0; i++) {
		__be16 k;
		/* The top bit says full or limited member (IBTA 10.9.3): the key is the rest, and 0 is none. */
		if (pkey_index >= 0 && i != pkey_index)
			continue;
		if (!ibv_query_pkey(q->ctx, port, i, &k) && (be16toh(k) & 0x7fff) && (pkey_index >= 0 || (be16toh(k) & 0x7fff) == (pkey & 0x7fff)))
			found = i;
	}
	TRY("find the P_Key in the port's table", found >= 0 || (errno = ENOENT, 0));
	q->pkey_index = found;
	q->rdepth = q->sdepth = depth;
	if (dev.orig_attr.max_qp_wr > 0 && (uint32_t)dev.orig_attr.max_qp_wr < depth)
		q->rdepth = q->sdepth = dev.orig_attr.max_qp_wr;
	TRY("ibv_alloc_pd", q->pd = ibv_alloc_pd(q->ctx));
	TRY("ibv_create_comp_channel", q->channel = ibv_create_comp_channel(q->ctx));
	TRY("fcntl of the completion channel", !fcntl(q->channel->fd, F_SETFL, fcntl(q->channel->fd, F_GETFL) | O_NONBLOCK));
	if (dev.completion_timestamp_mask && dev.hca_core_clock) {
		struct ibv_cq_init_attr_ex ca = {.cqe = q->rdepth, .channel = q->channel,
			.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
		q->rcqx = ibv_create_cq_ex(q->ctx, &ca);
		ca = (struct ibv_cq_init_attr_ex){.cqe = q->sdepth, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
		if (q->rcqx)
			q->scqx = ibv_create_cq_ex(q->ctx, &ca);
		if (q->rcqx && !q->scqx) {
			ibv_destroy_cq(ibv_cq_ex_to_cq(q->rcqx));
			q->rcqx = NULL;
		}
		if (q->rcqx) {
			q->hardware = 1;
			q->rcq = ibv_cq_ex_to_cq(q->rcqx);
			q->scq = ibv_cq_ex_to_cq(q->scqx);
		}
	}
	if (!q->hardware) {
		TRY("ibv_create_cq for receives", q->rcq = ibv_create_cq(q->ctx, q->rdepth, NULL, q->channel, 0));
		TRY("ibv_create_cq for sends", q->scq = ibv_create_cq(q->ctx, q->sdepth, NULL, NULL, 0));
	}
	struct ibv_qp_init_attr qa;
	/* As much inline as the device lets: a probe is 84 to 180 octets. */
	for (int inl = 256; !q->qp && inl >= 0; inl -= 64) {
		qa = (struct ibv_qp_init_attr){.send_cq = q->scq, .recv_cq = q->rcq, .qp_type = IBV_QPT_UD,
			.cap = {.max_send_wr = q->sdepth, .max_recv_wr = q->rdepth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = inl}};
		errno = 0;
		q->qp = ibv_create_qp(q->pd, &qa);
	}
	TRY("ibv_create_qp", q->qp);
	q->max_inline = qa.cap.max_inline_data;
	size_t size = (size_t)(q->rdepth + q->sdepth) * SLOT;
	TRY("allocate the packets' memory", !(errno = posix_memalign((void **)&q->mem, 4096, size)));
	memset(q->mem, 0, size);
	TRY("ibv_reg_mr", q->mr = ibv_reg_mr(q->pd, q->mem, size, IBV_ACCESS_LOCAL_WRITE));
	TRY("allocate the rings", (q->ring = calloc(q->rdepth, sizeof *q->ring)) && (q->slot = calloc(q->rdepth, sizeof *q->slot)) &&
					  (q->ids = calloc(q->sdepth, sizeof *q->ids)) && (q->again = calloc(POLL, sizeof *q->again)));
	TRY("bring the queue pair to RTS", !(e = ready(q)) || (errno = -e, 0));
	TRY("eventfd", (q->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
	TRY("pthread_create", !(errno = pthread_create(&q->thread, NULL, receive, q)));
	q->threaded = 1;
	*info = (struct gl_info){.qpn = q->qp->qp_num, .max_inline = q->max_inline, .depth = q->sdepth, .link_layer = pa.link_layer, .lid = pa.lid,
		.mtu = 128u << pa.active_mtu, .hca_clock_khz = dev.hca_core_clock, .hardware = q->hardware, .uverbs = nth(q->ctx->device->dev_name)};
	*out = q;
	return 0;
failed:
	gl_close(q);
	return e;
}

int gl_close(struct gl_q *q)
{
	int e = 0, r;
	if (q->threaded) {
		uint64_t one = 1;
		if (write(q->stop, &one, sizeof one) < 0)
			e = errno;
		pthread_join(q->thread, NULL);
	}
#define END(x)                       \
	do {                         \
		if ((r = (x)) && !e) \
			e = r;       \
	} while (0)
	if (q->qp)
		END(ibv_destroy_qp(q->qp));
	if (q->rcq)
		END(ibv_destroy_cq(q->rcq));
	if (q->scq)
		END(ibv_destroy_cq(q->scq));
	if (q->mr)
		END(ibv_dereg_mr(q->mr));
	if (q->channel)
		END(ibv_destroy_comp_channel(q->channel));
	if (q->pd)
		END(ibv_dealloc_pd(q->pd));
	if (q->ctx)
		END(ibv_close_device(q->ctx));
	if (q->stop >= 0)
		close(q->stop);
	free(q->mem);
	free(q->ring);
	free(q->slot);
	free(q->ids);
	free(q->again);
	free(q);
	return -(e < 0 ? -e : e);
}

/* gl_done takes completions of sends: those with an error, and with time stamps all. */
int gl_done(struct gl_q *q, struct gl_done *out, int most)
{
	int n = 0;
	if (q->scqx) {
		struct ibv_poll_cq_attr a = {0};
		if (most < 1 || ibv_start_poll(q->scqx, &a))
			return 0;
		do {
			uint64_t at = q->scqx->wr_id;
			if (at >= q->completed)
				q->completed = at + 1;
			uint32_t status = q->scqx->status;
			if (status != IBV_WC_SUCCESS)
				q->send_errors[status % GL_STATUSES]++;
			out[n++] = (struct gl_done){.hardware = status ? 0 : ibv_wc_read_completion_ts(q->scqx), .id = q->ids[at % q->sdepth], .status = status};
		} while (n < most && !ibv_next_poll(q->scqx));
		ibv_end_poll(q->scqx);
		return n;
	}
	struct ibv_wc wc[POLL];
	while (n < most) {
		int want = most - n < POLL ? most - n : POLL;
		int k = ibv_poll_cq(q->scq, want, wc);
		for (int i = 0; i < k; i++) {
			uint64_t at = wc[i].wr_id;
			if (at >= q->completed)
				q->completed = at + 1;
			if (wc[i].status != IBV_WC_SUCCESS) {
				q->send_errors[wc[i].status % GL_STATUSES]++;
				out[n++] = (struct gl_done){.id = q->ids[at % q->sdepth], .status = wc[i].status};
			}
		}
		if (k < want)
			break;
	}
	return n;
}

int gl_send(struct gl_q *q, struct gl_out *out, int n)
{
	struct ibv_send_wr wr[POLL], *bad = NULL;
	struct ibv_sge sge[POLL];
	int k = 0, at[POLL];
	for (int i = 0; i < n && i < POLL; i++) {
		out[i].err = 0;
		if (!out[i].ah) {
			out[i].err = EHOSTUNREACH;
			continue;
		}
		if (out[i].len > atomic_load_explicit(&q->mtu, memory_order_relaxed)) {
			out[i].err = EMSGSIZE; /* posted, it would end the queue pair's work */
			continue;
		}
		if (q->posted + k - q->completed >= q->sdepth) {
			out[i].err = ENOBUFS;
			continue;
		}
		uint64_t seq = q->posted + k;
		uint32_t place = seq % q->sdepth, len = out[i].len > GL_DATA ? GL_DATA : out[i].len;
		q->ids[place] = out[i].id;
		sge[k] = (struct ibv_sge){.addr = (uintptr_t)out[i].data, .length = len};
		unsigned flags = IBV_SEND_INLINE;
		if (len > q->max_inline) {
			uint8_t *slot = q->mem + (size_t)(q->rdepth + place) * SLOT;
			memcpy(slot, out[i].data, len);
			sge[k].addr = (uintptr_t)slot;
			sge[k].lkey = q->mr->lkey;
			flags = 0;
		}
		if (q->hardware || seq % SIGNAL == SIGNAL - 1)
			flags |= IBV_SEND_SIGNALED;
		wr[k] = (struct ibv_send_wr){.wr_id = seq, .sg_list = &sge[k], .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = flags, .imm_data = htobe32(out[i].imm),
			.wr.ud = {.ah = (struct ibv_ah *)(uintptr_t)out[i].ah, .remote_qpn = out[i].qpn, .remote_qkey = out[i].qkey}};
		if (k)
			wr[k - 1].next = &wr[k];
		at[k++] = i;
	}
	if (!k)
		return 0;
	int e = ibv_post_send(q->qp, wr, &bad);
	int done = e && bad ? (int)(bad - wr) : e ? 0 : k;
	for (int i = done; i < k; i++)
		out[at[i]].err = e < 0 ? -e : e;
	q->posted += done;
	return 0;
}

int gl_recv(struct gl_q *q, struct gl_in *in, int most)
{
	uint32_t h = atomic_load_explicit(&q->head, memory_order_relaxed), t = atomic_load_explicit(&q->tail, memory_order_acquire);
	int n = 0;
	while (n < most && n < POLL && h != t) {
		struct gl_in *r = &q->ring[h % q->rdepth];
		uint32_t s = q->slot[h % q->rdepth], len = r->len;
		uint8_t *mem = q->mem + (size_t)s * SLOT;
		in[n] = (struct gl_in){.stamp = r->stamp, .hardware = r->hardware, .imm = r->imm, .src_qpn = r->src_qpn, .flags = r->flags};
		/* The device writes the payload behind 40 octets, with or without a header in them. */
		len = len > GL_GRH ? len - GL_GRH : 0;
		in[n].len = len;
		memcpy(in[n].grh, mem, GL_GRH);
		memcpy(in[n].data, mem + GL_GRH, len > GL_DATA ? GL_DATA : len);
		q->again[n++] = s;
		h++;
	}
	atomic_store_explicit(&q->head, h, memory_order_release);
	if (n) {
		int e = post_receives(q, q->again, n);
		if (e)
			return e;
	}
	return n;
}

void gl_errors(struct gl_q *q, uint64_t *recv, uint64_t *send)
{
	for (int i = 0; i < GL_STATUSES; i++) {
		recv[i] = atomic_load(&q->recv_errors[i]);
		send[i] = q->send_errors[i];
	}
}

int gl_state(struct gl_q *q)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int e = ibv_query_qp(q->qp, &a, IBV_QP_STATE, &i);
	return e ? -(e < 0 ? -e : e) : (int)a.qp_state;
}

/* gl_reset brings the queue pair back to work under its number. What waited is lost. */
int gl_reset(struct gl_q *q)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	int e = ibv_modify_qp(q->qp, &a, IBV_QP_STATE);
	if (e)
		return -(e < 0 ? -e : e);
	/* Without the thread between: a slot that is on the ring, or flushed, is posted once. */
	struct gl_done gone[POLL];
	pthread_mutex_lock(&q->taking);
	while (gl_done(q, gone, POLL) > 0)
		;
	move(q);
	atomic_store(&q->head, atomic_load(&q->tail));
	q->completed = q->posted;
	e = ready(q);
	if (!e && ibv_req_notify_cq(q->rcq, 0))
		e = -EIO;
	pthread_mutex_unlock(&q->taking);
	return e;
}

int gl_port(struct gl_q *q, struct gl_port *out)
{
	struct ibv_port_attr a;
	int e = ibv_query_port(q->ctx, q->port, &a);
	if (e)
		return -(e < 0 ? -e : e);
	atomic_store(&q->mtu, 128u << a.active_mtu);
	*out = (struct gl_port){.state = a.state, .phys_state = a.phys_state, .link_layer = a.link_layer, .lid = a.lid, .mtu = 128u << a.active_mtu, .qkey_violations = a.qkey_viol_cntr};
	return 0;
}

int gl_events(struct gl_q *q, struct gl_event *out, int most)
{
	int n = 0;
	struct ibv_async_event e;
	while (n < most && !ibv_get_async_event(q->ctx, &e)) {
		out[n].type = e.event_type;
		out[n].port = 0;
		if (e.event_type == IBV_EVENT_PORT_ACTIVE || e.event_type == IBV_EVENT_PORT_ERR || e.event_type == IBV_EVENT_LID_CHANGE ||
			e.event_type == IBV_EVENT_PKEY_CHANGE || e.event_type == IBV_EVENT_GID_CHANGE || e.event_type == IBV_EVENT_SM_CHANGE || e.event_type == IBV_EVENT_CLIENT_REREGISTER)
			out[n].port = e.element.port_num;
		ibv_ack_async_event(&e);
		n++;
	}
	return n;
}

int gl_make_ah(struct gl_q *q, const struct gl_ah *a, uint64_t *out)
{
	struct ibv_ah_attr at = {.dlid = a->lid, .sl = a->sl, .is_global = a->global, .port_num = a->port,
		.grh = {.flow_label = a->flow_label, .sgid_index = a->gid_index, .hop_limit = a->hop_limit, .traffic_class = a->traffic_class}};
	memcpy(at.grh.dgid.raw, a->gid, 16);
	errno = 0;
	struct ibv_ah *ah = ibv_create_ah(q->pd, &at);
	if (!ah)
		return errno ? -errno : -EIO;
	*out = (uintptr_t)ah;
	return 0;
}

int gl_drop_ah(struct gl_q *q, uint64_t ah)
{
	(void)q;
	int e = ibv_destroy_ah((struct ibv_ah *)(uintptr_t)ah);
	return -(e < 0 ? -e : e);
}

int gl_clock(struct gl_q *q, uint64_t *raw, int64_t *before, int64_t *after)
{
	struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	*before = now();
	int e = ibv_query_rt_values_ex(q->ctx, &v);
	*after = now();
	if (e)
		return -(e < 0 ? -e : e);
	*raw = (uint64_t)v.raw_clock.tv_sec * 1000000000 + v.raw_clock.tv_nsec; /* in cycles, despite its type */
	return 0;
}

#ifdef GL_FAULT
struct ibv_qp *gl_pair(struct gl_q *q);
struct ibv_qp *gl_pair(struct gl_q *q) { return q->qp; }
#endif
