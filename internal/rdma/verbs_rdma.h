#ifndef GRAYLINK_VERBS_H
#define GRAYLINK_VERBS_H

#include <stdint.h>

/* What crosses between Go and C. The Go types Out, In and Done have the same layout. */
enum { GL_DATA = 1024, GL_GRH = 40 };

struct gl_out {
	uint64_t ah;
	uint32_t qpn, qkey, imm, len, id;
	int32_t err; /* an errno, or 0: it was posted */
	uint8_t data[GL_DATA];
};

enum { GL_HAS_GRH = 1, GL_HAS_IMM = 2 };

struct gl_in {
	int64_t stamp; /* CLOCK_REALTIME, nanoseconds */
	uint64_t hardware; /* of the device's clock, raw */
	uint32_t imm, src_qpn, len, flags;
	uint8_t grh[GL_GRH];
	uint8_t data[GL_DATA];
};

struct gl_done {
	uint64_t hardware;
	uint32_t id, status;
};

struct gl_info {
	uint32_t qpn, max_inline, depth, link_layer, lid, mtu;
	uint64_t hca_clock_khz;
	int32_t hardware; /* completions have time stamps */
	int32_t uverbs; /* number of the device's uverbs node */
};

struct gl_gid {
	uint8_t gid[16];
	uint32_t index, type;
};

struct gl_port {
	int32_t state, phys_state, link_layer;
	uint32_t lid, mtu, qkey_violations;
};

struct gl_ah {
	uint8_t gid[16];
	uint32_t flow_label, gid_index;
	uint16_t lid;
	uint8_t sl, traffic_class, hop_limit, port, global;
};

struct gl_event {
	int32_t type, port;
};

enum { GL_STATUSES = 32 };

struct gl_q;

int gl_load(char *why, int size);
/* The other functions may be called after gl_load returned 0. */
int gl_devices(char *names, int stride, int most);
/* Errors are negative errnos; *step says at which call. A pkey_index of -1 looks pkey up in the port's table. */
int gl_open(const char *device, int port, uint16_t pkey, int pkey_index, uint32_t qkey, uint32_t depth, int64_t busy_ns, int notify_fd, struct gl_q **out, struct gl_info *info, const char **step);
int gl_gids(const char *device, int port, struct gl_gid *out, int most);
int gl_close(struct gl_q *q);
int gl_send(struct gl_q *q, struct gl_out *out, int n);
int gl_recv(struct gl_q *q, struct gl_in *in, int most);
int gl_done(struct gl_q *q, struct gl_done *out, int most);
void gl_errors(struct gl_q *q, uint64_t *recv, uint64_t *send);
int gl_state(struct gl_q *q);
int gl_reset(struct gl_q *q);
int gl_port(struct gl_q *q, struct gl_port *out);
int gl_table(struct gl_q *q, struct gl_gid *out, int most);
int gl_events(struct gl_q *q, struct gl_event *out, int most);
int gl_make_ah(struct gl_q *q, const struct gl_ah *a, uint64_t *out);
int gl_drop_ah(struct gl_q *q, uint64_t ah);
int gl_clock(struct gl_q *q, uint64_t *raw, int64_t *before, int64_t *after);

#endif
