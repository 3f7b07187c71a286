/* A job that computes, by sleeping, and adds up numbers over all ranks, in turn.
 *
 *   job BYTES COMPUTE_US BEFORE AFTER LATE_RANK LATE_US DIR
 *
 * After the first BEFORE operations rank 0 creates the file DIR/reached and waits for DIR/go, so that a fault can
 * begin at this point whatever the machine's speed. In the AFTER operations that follow, LATE_RANK computes for
 * LATE_US longer; -1 is no rank.
 */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* rest sleeps for a number of microseconds. */
static void rest(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&t, NULL);
}

/* sched_yield sleeps for a moment. Open MPI calls it whenever it has nothing to do (mpi_yield_when_idle): ranks that share
 * processors would otherwise take them from each other, and from the kernel that carries their data.
 */
int sched_yield(void)
{
	rest(50);
	return 0;
}

/* rendezvous lets all ranks wait until the file go exists. */
static void rendezvous(const char *dir, int rank)
{
	char path[4096];
	FILE *reached;

	if (rank == 0) {
		snprintf(path, sizeof path, "%s/reached", dir);
		reached = fopen(path, "w");
		if (!reached || fclose(reached)) {
			perror(path);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		snprintf(path, sizeof path, "%s/go", dir);
		while (access(path, F_OK))
			rest(10000);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank, count, i, before, after, late;
	long compute, late_us;
	float *mine, *sum;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 8) {
		fprintf(stderr, "usage: job BYTES COMPUTE_US BEFORE AFTER LATE_RANK LATE_US DIR\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	count = atoi(argv[1]) / (int)sizeof *mine;
	compute = atol(argv[2]);
	before = atoi(argv[3]);
	after = atoi(argv[4]);
	late = atoi(argv[5]);
	late_us = atol(argv[6]);
	mine = calloc(count, sizeof *mine);
	sum = calloc(count, sizeof *sum);
	if (!mine || !sum)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (i = 0; i < before + after; i++) {
		if (i == before)
			rendezvous(argv[7], rank);
		rest(compute + (i >= before && rank == late ? late_us : 0));
		mine[0] = mine[count - 1] = (float)(rank + 1);
		MPI_Allreduce(mine, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	}
	MPI_Comm_size(MPI_COMM_WORLD, &i);
	if (sum[0] != (float)(i * (i + 1) / 2) || sum[count - 1] != sum[0]) {
		fprintf(stderr, "rank %d: the sum is wrong: %g\n", rank, sum[0]);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return MPI_Finalize();
}
